#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace ebb::test {
namespace {

TEST(RowStatistics, EveryAxisSet) {
  for (const Axes& axes : {Axes{}, Axes{0}, Axes{-1}, Axes{1}, Axes{2, 0}, Axes{1, 2}})
    for (Keep keep : {Keep::no, Keep::yes}) {
      check({"logsumexp" + to_string(axes), {SampleInput::real({2, 3, 4})}, [=](const auto& x) {
               return std::vector{logsumexp(x[0], axes, keep)};
             }});
      check({"var" + to_string(axes), {SampleInput::real({2, 3, 4})}, [=](const auto& x) {
               return std::vector{var(x[0], axes, 1, keep)};
             }});
    }
  check({"var without correction", {SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{var(x[0], {-1}, 0)};
         }});
}

TEST(RowStatistics, Shapes) {
  const Tensor x = zeros({2, 3, 4});
  EXPECT_EQ(var(x, {0, 2}).shape(), Shape{3});
  EXPECT_EQ(logsumexp(x, {0, 2}, Keep::yes).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(logsumexp(x).shape(), Shape{});
  EXPECT_EQ(argmax(x, 1).shape(), (Shape{2, 4}));
  EXPECT_EQ(argmax(x, -2, Keep::yes).shape(), (Shape{2, 1, 4}));
}

TEST(RowStatistics, LogsumexpIsSafe) {
  const Tensor x = Tensor::from(
      std::vector<float>{1000, 1000, -INFINITY, -INFINITY, INFINITY, 0, NAN, 0}, {4, 2});
  const auto y = logsumexp(x, {1}).to_vector<float>();
  EXPECT_FLOAT_EQ(y[0], 1000.0f + std::log(2.0f));
  EXPECT_EQ(y[1], -INFINITY);
  EXPECT_EQ(y[2], INFINITY);
  EXPECT_TRUE(std::isnan(y[3]));
}

// Far from zero, the variance would be lost in the squares of x: two passes keep it.
TEST(RowStatistics, VarianceFarFromZero) {
  std::vector<float> values;
  for (int i = 0; i < 3000; ++i) values.push_back(10000.0f + static_cast<float>(i % 2));
  const float v = var(Tensor::from(values, {3000}), {}, 0).to_vector<float>()[0];
  EXPECT_FLOAT_EQ(v, 0.25f);
}

TEST(RowStatistics, Argmax) {
  check({"argmax", {SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{argmax(x[0], 0), argmax(x[0], 1)};
         }});
  const Tensor x = Tensor::from(std::vector<float>{1, 3, 3, 5, NAN, NAN}, {2, 3});
  EXPECT_EQ(argmax(x, 1).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(argmax(x, 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 1, 1}));
  const Tensor n = Tensor::from(std::vector<std::int32_t>{-5, -2, -9}, {3});
  EXPECT_EQ(argmax(n, 0).item(), 1.0);
}

TEST(RowStatistics, Errors) {
  expect_error([] { logsumexp(zeros({2, 3}), {2}); }, {"[logsumexp]", "axis 2", "[-2, 2)"});
  expect_error([] { logsumexp(zeros({2, 3}), {0, -2}); }, {"[logsumexp]", "axis 0", "twice"});
  expect_error([] { logsumexp(zeros({2}, i32)); }, {"[logsumexp]", "floating-point", "int32"});
  expect_error([] { var(zeros({2, 1}), {1}); }, {"[var]", "correction 1", "has 1"});
  expect_error([] { var(zeros({2, 3}), {1}, -1); }, {"[var]", "negative", "-1"});
  expect_error([] { argmax(zeros({2, 0}), 1); }, {"[argmax]", "no elements"});
  expect_error([] { argmax(zeros({2}, b8), 0); }, {"[argmax]", "bool"});
  expect_error([] { argmax(zeros({}), 0); }, {"[argmax]", "axis 0"});
}

}  // namespace
}  // namespace ebb::test
