#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Gather, Gradients) {
  for (DType dtype : {i64, i32}) {
    check({"gather",
           {SampleInput::real({4, 3}), SampleInput::index({2, 3}, 4, dtype)},
           [](const auto& x) { return std::vector{square(gather(x[0], 0, x[1]))}; }});
    check({"gather last",
           {SampleInput::real({3, 4}), SampleInput::index({3, 5}, 4, dtype)},
           [](const auto& x) { return std::vector{square(gather(x[0], -1, x[1]))}; }});
    check({"scatter_add",
           {SampleInput::real({2, 3}), SampleInput::index({2, 5}, 3, dtype),
            SampleInput::real({2, 5})},
           [](const auto& x) { return std::vector{square(scatter_add(x[0], 1, x[1], x[2]))}; }});
  }
}

TEST(Gather, OneHot) {
  const Tensor index = Tensor::from(std::vector<std::int64_t>{2, 0}, {2});
  EXPECT_EQ(one_hot(index, 3).to_vector<float>(), (std::vector<float>{0, 0, 1, 1, 0, 0}));
}

TEST(Gather, BadIndicesAreReportedWhenRun) {
  const Tensor x = zeros({2, 3}), index = Tensor::from(std::vector<std::int64_t>{0, 7}, {2, 1});
  expect_error([&] { eval(gather(x, 1, index)); }, {"[gather]", "index 7", "position 1", "[0, 3)"});
  expect_error(
      [&] {
        eval(scatter_add(x, 1, index, zeros({2, 1})));
      },
      {"[scatter_add]", "index 7"});
}

TEST(Gather, Errors) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { gather(x, 1, zeros({2, 1})); }, {"[gather]", "int64 or int32", "float32"});
  expect_error(
      [&] {
        gather(x, 1, zeros({3, 1}, i64));
      },
      {"[gather]", "axis 1", "differs along 0"});
  expect_error([&] { gather(x, 2, zeros({2, 1}, i64)); }, {"[gather]", "axis 2"});
  expect_error(
      [&] {
        scatter_add(x, 0, zeros({1, 3}, i64), zeros({2, 3}));
      },
      {"[scatter_add]", "same shape"});
}

}  // namespace
}  // namespace ebb::test
