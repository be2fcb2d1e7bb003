#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/op_check.h"

namespace ebb::test {
namespace {

using Reduction = Tensor (*)(const Tensor&, const Axes&, Keep);

TEST(Reduce, EveryAxisSet) {
  const std::pair<const char*, Reduction> reductions[] = {
      {"sum", sum}, {"mean", mean}, {"sum_squares", sum_squares}, {"max", max}, {"min", min}};
  for (const auto& [name, reduce] : reductions)
    for (const Axes& axes : {Axes{}, Axes{0}, Axes{-1}, Axes{1}, Axes{0, 2}, Axes{1, 2}})
      for (Keep keep : {Keep::no, Keep::yes})
        check({std::string(name) + to_string(axes),
               {SampleInput::real({2, 3, 4})},
               [=, reduce = reduce](const auto& x) {
                 return std::vector{reduce(x[0], axes, keep)};
               }});
}

TEST(Reduce, StridedInputs) {
  check({"of a transpose", {SampleInput::real({3, 4, 2})}, [](const auto& x) {
           return std::vector{sum(permute(x[0], {2, 0, 1}), {0, 2})};
         }});
  check({"of a slice", {SampleInput::real({4, 6})}, [](const auto& x) {
           return std::vector{max(slice(x[0], 1, 1, 6, 2), {0})};
         }});
  check({"of an expanded", {SampleInput::real({4, 1})}, [](const auto& x) {
           return std::vector{sum(expand(x[0], {3, 4, 5}), {0, 2})};
         }});
}

TEST(Reduce, NormsOfAllKinds) {
  for (double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()})
    check({"norm " + std::to_string(p), {SampleInput::real({3, 4}, 0.2, 2.0)}, [p](const auto& x) {
             return std::vector{norm(x[0], p, {1})};
           }});
}

TEST(Reduce, LargeSumsAreAccurateAndIndependentOfThreads) {
  std::vector<float> values(1 << 20);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(std::sin(static_cast<double>(i)) + 0.5);
  const double exact = std::accumulate(values.begin(), values.end(), 0.0);
  const Tensor x = Tensor::from(values, {1 << 10, 1 << 10});
  const int before = threads();
  set_threads(1);
  const float one = sum(x).to_vector<float>()[0];
  const auto columns = sum(x, {0}).to_vector<float>();
  set_threads(3);
  EXPECT_EQ(sum(x).to_vector<float>()[0], one);
  EXPECT_EQ(sum(x, {0}).to_vector<float>(), columns);
  set_threads(before);
  EXPECT_NEAR(one, exact, std::abs(exact) * 1e-6);  // a few roundings of float at the end
}

// The sums, 140000 and twice that, are beyond float16.
TEST(Reduce, MeansOfHalfTypesDoNotOverflow) {
  const Tensor x = full({2, 70000}, 2.0, f16);
  EXPECT_EQ(mean(x).item(), 2.0);
  EXPECT_EQ(values_of(mean(x, {1})), (std::vector<double>{2.0, 2.0}));
  EXPECT_EQ(mean(x).dtype(), f16);
}

TEST(Reduce, NaNWinsInExtremes) {
  const Tensor x = Tensor::from(std::vector<float>{1.0f, NAN, 3.0f}, {3});
  EXPECT_TRUE(std::isnan(max(x).to_vector<float>()[0]));
  EXPECT_TRUE(std::isnan(min(x).to_vector<float>()[0]));
}

TEST(Reduce, SumsOfIntegersAreInt64) {
  EXPECT_EQ(sum(full({1000}, 255.0, u8)).dtype(), i64);
  EXPECT_EQ(sum(full({1000}, 255.0, u8)).item(), 255000.0);
  EXPECT_EQ(values_of(sum(full({2, 300}, 0x1p30, i32), {1})),
            (std::vector<double>{300 * 0x1p30, 300 * 0x1p30}));
  EXPECT_EQ(sum_squares(full({300}, 255.0, u8)).item(), 300.0 * 255 * 255);
  EXPECT_EQ(sum(full({100, 3}, 200.0, u8) + full({3}, 50.0, u8), {0}).dtype(), i64);  // fused
  EXPECT_EQ(sum(full({100, 3}, 200.0, u8) + full({3}, 50.0, u8)).item(), 75000.0);
}

TEST(Reduce, Errors) {
  expect_error([] { sum(zeros({2, 3}), {0, -2}); }, {"[sum]", "axis 0", "twice"});
  expect_error([] { mean(ones({2}, i64)); }, {"mean", "int64", "cast()"});
  expect_error([] { norm(ones({2}, i64)); }, {"floating-point", "int64"});
  expect_error([] { sum(zeros({2, 3}), {2}); }, {"[sum]", "axis 2", "[-2, 2)"});
  expect_error([] { max(zeros({2, 0})); }, {"[max]", "no elements"});
  expect_error([] { sum(zeros({2}, b8)); }, {"[sum]", "bool"});
}

}  // namespace
}  // namespace ebb::test
