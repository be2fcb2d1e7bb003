#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Concat, Gradients) {
  check({"concat",
         {SampleInput::real({2, 3}), SampleInput::real({2, 1}), SampleInput::real({2, 2})},
         [](const auto& x) { return std::vector{square(concat(x, 1))}; }});
  check({"concat of views",
         {SampleInput::real({2, 3}), SampleInput::real({3, 2})},
         [](const auto& x) {
           return std::vector{concat({transpose(x[0]), square(x[1])}, 0)};
         }});
  check({"stack", {SampleInput::real({2, 3}), SampleInput::real({2, 3})}, [](const auto& x) {
           return std::vector{square(stack(x, -1))};
         }});
}

TEST(Concat, Errors) {
  expect_error([] { concat({}, 0); }, {"[concat]", "none came"});
  expect_error(
      [] {
        concat({zeros({2, 3}), zeros({3, 3})}, 1);
      },
      {"[concat]", "axis 1", "part 1", "axis 0"});
  expect_error(
      [] {
        concat({zeros({2}), zeros({2}, f64)}, 0);
      },
      {"[concat]", "float32 and float64"});
  expect_error([] { concat({zeros({2}), zeros({2})}, 1); }, {"[concat]", "axis 1"});
  expect_error([] { stack({zeros({2}), zeros({3})}, 0); }, {"[concat]"});
}

}  // namespace
}  // namespace ebb::test
