#include <gtest/gtest.h>

#include "ops/pointwise/convert.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

// Keys are given, so that every build of the sample draws the same numbers.
TEST(Generators, Gradients) {
  check({"arange", {SampleInput::real({5})}, [](const auto& x) {
           return std::vector{square(x[0]) * arange(5, x[0].dtype())};
         }});
  check({"random_uniform", {SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{square(x[0]) * random_uniform({3, 4}, -1.0, 1.0, x[0].dtype(),
                                                            device::cpu, RandomKey{7})};
         }});
  check({"random_normal", {SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{square(x[0]) * random_normal({3, 4}, 0.0, 1.0, x[0].dtype(),
                                                           device::cpu, RandomKey{8})};
         }});
  check({"dropout", {SampleInput::real({6, 5})}, [](const auto& x) {
           return std::vector{dropout(square(x[0]), 0.3, RandomKey{9})};
         }});
}

TEST(Generators, IntegersCountUp) {
  for (DType dtype : {i64, i32, f32, f64})
    EXPECT_EQ(values_of(arange(4, dtype)), (std::vector<double>{0, 1, 2, 3})) << name(dtype);
  EXPECT_EQ(values_of(arange(0)).size(), 0u);
}

// As cast() converts: integers saturate, booleans are 0 or 1.
TEST(Generators, FullConvertsLikeCast) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : all_dtypes)
    for (double value : {0.0, 1.0, 2.0, -1.0, 0.5, 300.0, infinity}) {
      if (is_integer(dtype) && !holds(dtype, value)) {
        expect_error([&] { full({1}, value, dtype); },
                     {"[full]", std::string(name(dtype)), "cannot hold"});
        continue;
      }
      const Tensor given = cast(Tensor::from(std::vector<double>{value}, {1}), dtype);
      EXPECT_EQ(values_of(full({1}, value, dtype)), values_of(given))
          << value << " in " << name(dtype);
    }
  expect_error([] { full({1}, 1e6, f16); }, {"[full]", "float16", "cannot hold"});
  expect_error([] { ones({2}, i64) * 0.5; }, {"[mul]", "int64", "0.5", "cast()"});
  expect_error([] { 1.5 - ones({2}, u8); }, {"[sub]", "uint8", "1.5", "cast()"});
}

// The same numbers whatever the shape is split into, and on any number of threads.
TEST(Generators, NumbersDependOnTheirPlaceOnly) {
  const auto draw = [](const Shape& shape) {
    return random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{3}).to_vector<float>();
  };
  const int before = threads();
  set_threads(1);
  const std::vector<float> one = draw({200'000});
  set_threads(3);
  EXPECT_EQ(draw({200'000}), one);
  EXPECT_EQ(draw({400, 500}), one);
  set_threads(before);
  const std::vector<float> start = draw({1001});
  EXPECT_TRUE(std::equal(start.begin(), start.end(), one.begin()));
}

// Kernels run many counters side by side; each word must be that of its counter alone.
TEST(Generators, WordsAreThoseOfPhilox) {
  const RandomKey key{0xFEDCBA9876543210};
  const Philox philox({.seed = 5, .step = 0}, key);
  const std::vector<float> drawn =
      eval(random_uniform({1003}, 0.0, 1.0, f32, device::cpu, key), 5).to_vector<float>();
  for (std::size_t i = 0; i < drawn.size(); ++i)
    ASSERT_EQ(drawn[i], uniform_from_bits(philox(i / 4)[i % 4])) << i;
}

}  // namespace
}  // namespace ebb::test
