#include <gtest/gtest.h>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Pad, Gradients) {
  check({"pad", {SampleInput::real({2, 3})}, [](const auto& x) {
           return std::vector{square(pad(x[0], {1, 0}, {0, 2}))};
         }});
}

TEST(Pad, FillsEveryDtype) {
  for (DType dtype : all_dtypes) {
    const Tensor padded = pad(ones({2}, dtype), {1}, {2}, 1.0);
    EXPECT_EQ(values_of(padded), std::vector<double>(5, 1.0)) << name(dtype);
  }
  EXPECT_EQ(values_of(pad(ones({2}, bf16), {1}, {0}, -2.5)), (std::vector<double>{-2.5, 1.0, 1.0}));
}

TEST(Pad, Errors) {
  expect_error([] { pad(zeros({2, 3}), {1}, {1}); }, {"[pad]", "2 axes", "(1,)"});
  expect_error([] { pad(zeros({2}), {-1}, {0}); }, {"[pad]", "negative"});
}

}  // namespace
}  // namespace ebb::test
