#include <gtest/gtest.h>

#include "ebb/decode.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

SampleInput places(Shape shape, std::vector<double> values) {
  SampleInput input = SampleInput::index(shape, 1, i32);
  input.values = std::move(values);
  return input;
}

TEST(RotaryAt, Samples) {
  check({"two sequences",
         {SampleInput::real({2, 3, 2, 6}), places({2, 2}, {0, 5, 1000, -1})},
         [](const auto& x) { return std::vector{rotary_at(x[0], x[1], 10000.0)}; }});
  check({"heads as views, in place",
         {SampleInput::real({1, 3, 5, 8}), places({1, 3}, {2, 3, 4})},
         [](const auto& x) {
           return std::vector{rotary_at(permute(x[0] * x[0], {0, 2, 1, 3}), x[1], 100.0)};
         }});
}

TEST(RotaryAt, EqualsRotaryAtConsecutivePositions) {
  const Tensor x = eval(random_normal({2, 3, 5, 8}, 0.0, 1.0, f64));
  std::vector<std::int32_t> positions;
  for (int b = 0; b < 2; ++b)
    for (int t = 0; t < 5; ++t) positions.push_back(7 + t);
  const auto a = rotary_at(x, Tensor::from(positions, {2, 5}), 500.0).to_vector<double>(),
             b = rotary(x, 500.0, 7).to_vector<double>();
  // The angles of `rotary` are continued from one position to the next.
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-13);
}

TEST(RotaryAt, Errors) {
  const Tensor at = zeros({1, 2}, i32);
  expect_error([&] { rotary_at(zeros({1, 1, 2, 5}), at); }, {"[rotary_at]", "even", "5"});
  expect_error(
      [&] {
        rotary_at(zeros({1, 1, 3, 4}), at);
      },
      {"[rotary_at]", "positions must be int32 (1, 3)"});
  expect_error(
      [&] {
        rotary_at(zeros({1, 1, 2, 4}), zeros({1, 2}, i64));
      },
      {"[rotary_at]", "int64"});
  expect_error([&] { rotary_at(zeros({2, 4}), at); }, {"[rotary_at]", "rank"});
  expect_error([&] { rotary_at(zeros({1, 1, 2, 4}), at, 0.0); }, {"[rotary_at]", "base"});
}

}  // namespace
}  // namespace ebb::test
