#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(Softmax, EveryAxis) {
  for (int axis : {-1, 0, 1}) {
    check({"softmax along " + std::to_string(axis),
           {SampleInput::real({3, 4, 5})},
           [=](const auto& x) { return std::vector{softmax(x[0], axis)}; }});
    check({"log_softmax along " + std::to_string(axis),
           {SampleInput::real({3, 4, 5})},
           [=](const auto& x) { return std::vector{log_softmax(x[0], axis)}; }});
  }
}

// Longer than vectors and tiles, with a rest.
TEST(Softmax, LongRows) {
  check({"softmax of long rows", {SampleInput::real({2, 1101})}, [](const auto& x) {
           return std::vector{softmax(x[0])};
         }});
  check({"log_softmax of long rows", {SampleInput::real({2, 1101})}, [](const auto& x) {
           return std::vector{log_softmax(x[0])};
         }});
}

TEST(Softmax, LargeValuesDoNotOverflow) {
  for (DType dtype : {f64, f32, f16, bf16}) {
    const Tensor x =
        cast(Tensor::from(std::vector<float>{9000, 9000, -9000, -INFINITY}, {4}), dtype);
    const auto p = values_of(softmax(x));
    EXPECT_TRUE(p[0] == 0.5 && p[1] == 0.5 && p[2] == 0.0 && p[3] == 0.0) << name(dtype);
    const auto y = values_of(log_softmax(x));
    EXPECT_NEAR(y[0], -std::log(2.0), 2e-3);  // bfloat16 has 8 bits
    EXPECT_EQ(y[3], -INFINITY);
  }
}

TEST(Softmax, NaNSpreadsOverItsRowOnly) {
  const auto y = softmax(Tensor::from(std::vector<float>{1, NAN, 2, 5, 5, -90}, {2, 3}));
  const auto values = y.to_vector<float>();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(values[static_cast<std::size_t>(i)]));
  EXPECT_EQ(values[3], 0.5f);
}

TEST(Softmax, DoesNotDependOnThreads) {
  const Tensor x = eval(random_normal({333, 77}, 0.0, 3.0));
  const int before = threads();
  set_threads(1);
  const auto one = softmax(x).to_vector<float>();
  set_threads(3);
  EXPECT_EQ(softmax(x).to_vector<float>(), one);
  set_threads(before);
  EXPECT_NEAR(std::accumulate(one.begin(), one.end(), 0.0), 333.0, 1e-3);  // 333 sums, 6 digits
}

TEST(Softmax, Empty) {
  EXPECT_TRUE(softmax(zeros({0, 3})).to_vector<float>().empty());
  EXPECT_TRUE(log_softmax(zeros({3, 0})).to_vector<float>().empty());
}

TEST(Softmax, Errors) {
  expect_error([] { softmax(zeros({2, 3}), 2); }, {"[softmax]", "axis 2", "[-2, 2)"});
  expect_error([] { softmax(zeros({2, 3}, i64)); }, {"[softmax]", "floating-point", "int64"});
  expect_error([] { log_softmax(zeros({})); }, {"[log_softmax]", "axis -1"});
  expect_error([] { softmax(Tensor{}); }, {"[softmax]", "empty"});
}

}  // namespace
}  // namespace ebb::test
