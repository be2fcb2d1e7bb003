#include <gtest/gtest.h>

#include "ebb/decode.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

SampleInput whole_numbers(Shape shape, std::vector<double> values) {
  SampleInput input = SampleInput::index(shape, 1, i32);
  input.values = std::move(values);
  return input;
}

TEST(CacheWrite, Samples) {
  check({"two of three rows",
         {SampleInput::real({3, 2, 5, 4}), SampleInput::real({3, 2, 5, 3}),
          SampleInput::real({2, 2, 3, 4}), SampleInput::real({2, 2, 3, 3}),
          whole_numbers({2, 3}, {0, 1, 2, 3, 4, -1}), whole_numbers({2}, {2, 0})},
         [](const auto& x) {
           const auto now = cache_write(x[0], x[1], x[2], x[3], x[4], x[5]);
           return std::vector{now.keys, now.values};
         }});
  check({"heads as views",
         {SampleInput::real({1, 2, 4, 6}), SampleInput::real({1, 2, 4, 6}),
          SampleInput::real({1, 1, 2, 6}), whole_numbers({1, 1}, {3}), whole_numbers({1}, {0})},
         [](const auto& x) {
           const Tensor k = permute(x[2], {0, 2, 1, 3});
           const auto now = cache_write(x[0], x[1], k, k * 2.0, x[3], x[4]);
           return std::vector{now.keys, now.values};
         }});
}

// The purpose of the op: new tokens are written into a variable in place, and nothing is copied.
TEST(CacheWrite, WritesIntoAVariableInPlace) {
  Variable keys(full({2, 1, 4, 2}, 7.0)), values(full({2, 1, 4, 2}, 8.0));
  const Tensor k = input({{1, 1, 1, 2}, f32}, "k"), at = input({{1, 1}, i32}, "at"),
               row = input({{1}, i32}, "row");
  const CachedKeysValues now = cache_write(keys, values, k, k, at, row);
  Program program({.inputs = {k, at, row},
                   .outputs = {sum(now.keys)},
                   .updates = {{keys, now.keys}, {values, now.values}}});
  for (const Instruction& instruction : program.plan().instructions)
    EXPECT_NE(instruction.op->name(), "identity");
  EXPECT_LT(program.plan().arena(), 4_KiB + 1_B);
  program.run({Tensor::from(std::vector<float>{1, 2}, {1, 1, 1, 2}),
               Tensor::from(std::vector<std::int32_t>{2}, {1, 1}),
               Tensor::from(std::vector<std::int32_t>{1}, {1})});
  const std::vector<float> expected{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1, 2, 7, 7};
  EXPECT_EQ(keys.to_vector<float>(), expected);
  EXPECT_EQ(program.output(0).item(), 7.0 * 14 + 3.0);
}

TEST(CacheWrite, Errors) {
  const auto call = [](Shape cache, Shape fresh, std::int32_t at, std::int32_t row) {
    const auto now = cache_write(zeros(cache), zeros(cache), zeros(fresh), zeros(fresh),
                                 Tensor::from(std::vector<std::int32_t>{at}, {1, 1}),
                                 Tensor::from(std::vector<std::int32_t>{row}, {1}));
    eval(std::vector{now.keys, now.values});
  };
  expect_error([&] { call({1, 2, 4, 2}, {1, 3, 1, 2}, 0, 0); }, {"[cache_write]", "heads"});
  expect_error(
      [&] {
        call({1, 2, 4, 2}, {1, 2, 2, 2}, 0, 0);
      },
      {"[cache_write]", "positions must be int32 (1, 2)"});
  expect_error([&] { call({1, 2, 4, 2}, {1, 2, 1, 2}, 4, 0); }, {"cache_write", "4"});
  expect_error([&] { call({1, 2, 4, 2}, {1, 2, 1, 2}, 0, 1); }, {"cache_write", "1"});
}

}  // namespace
}  // namespace ebb::test
