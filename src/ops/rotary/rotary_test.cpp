#include <gtest/gtest.h>

#include <cmath>

#include "support/op_check.h"

namespace ebb::test {
namespace {

Sample sample(const char* name, const Shape& shape, double base, std::int64_t first) {
  return {name, {SampleInput::real(shape)}, [=](const auto& x) {
            return std::vector{rotary(x[0], base, first)};
          }};
}

TEST(Rotary, Samples) {
  check(sample("four axes", {2, 3, 5, 6}, 10000.0, 0));
  check(sample("two axes", {4, 8}, 100.0, 0));
  check(sample("later positions", {2, 4, 4}, 10000.0, 1000));
  check(sample("more than one run of positions", {70, 4}, 500000.0, 7));
}

TEST(Rotary, TurnsPairsByThePosition) {
  const Tensor x = Tensor::from(std::vector<double>{1, 2, 3, 4, 1, 2, 3, 4}, {2, 4});
  const auto y = rotary(x, 100.0, 5).to_vector<double>();
  for (int t = 0; t < 2; ++t)
    for (int i = 0; i < 2; ++i) {
      const double angle = (5 + t) * (i == 0 ? 1.0 : 0.1), a = i + 1, b = i + 3;
      EXPECT_NEAR(y[static_cast<std::size_t>(t * 4 + i)], a * std::cos(angle) - b * std::sin(angle),
                  1e-14);
      EXPECT_NEAR(y[static_cast<std::size_t>(t * 4 + i + 2)],
                  b * std::cos(angle) + a * std::sin(angle), 1e-14);
    }
}

TEST(Rotary, ReadsHeadsWithoutACopyAndWritesInPlace) {
  check({"strided", {SampleInput::real({2, 5, 3, 4})}, [](const auto& x) {
           return std::vector{rotary(permute(x[0], {0, 2, 1, 3}))};
         }});
  check({"in place", {SampleInput::real({3, 4})}, [](const auto& x) {
           return std::vector{rotary(x[0] * x[0]) * 2.0};
         }});
  const Tensor x = input({{2, 5, 3, 4}, f32}, "x");
  const Program program(
      {.inputs = {x}, .outputs = {rotary(permute(x, {0, 2, 1, 3}))}, .updates = {}});
  EXPECT_EQ(program.plan().instructions.size(), 1u);
}

TEST(Rotary, EmptySizes) {
  EXPECT_EQ(rotary(zeros({0, 4})).to_vector<float>().size(), 0u);
  EXPECT_EQ(rotary(zeros({3, 0})).to_vector<float>().size(), 0u);
}

TEST(Rotary, Errors) {
  expect_error([] { rotary(zeros({3, 5})); }, {"[rotary]", "even", "5"});
  expect_error([] { rotary(zeros({4})); }, {"[rotary]", "rank is 1"});
  expect_error([] { rotary(zeros({3, 4}, i32)); }, {"[rotary]", "floating-point", "int32"});
  expect_error([] { rotary(zeros({3, 4}), -1.0); }, {"[rotary]", "base", "-1"});
}

}  // namespace
}  // namespace ebb::test
