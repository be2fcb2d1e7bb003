#include <gtest/gtest.h>

#include <cmath>

#include "ebb/decode.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

Int8KeysValues empty_cache(std::int64_t rows, std::int64_t heads, std::int64_t tokens,
                           std::int64_t size, std::int64_t value_size) {
  const auto part = [&](std::int64_t d) {
    return Int8Cache{zeros({rows, heads, tokens, d}, u8),
                     zeros({rows, heads, tokens, int8_cache_blocks(d)})};
  };
  return {part(size), part(value_size)};
}

Tensor ids(std::vector<std::int32_t> values, Shape shape) { return Tensor::from(values, shape); }

// Both dtypes, and values past the last whole block; tokens without a position change nothing.
TEST(CacheWriteInt8, ValuesComeBackWithinHalfAStep) {
  const std::int64_t size = 100, value_size = 16;
  for (const DType dtype : {f32, bf16, f16, f64}) {
    const Tensor k = eval(random_normal({2, 3, 2, size}, 0.0, 2.0, dtype), 1),
                 v = eval(random_normal({2, 3, 2, value_size}, 0.0, 0.01, dtype), 2);
    const Int8KeysValues now = cache_write(empty_cache(4, 3, 5, size, value_size), k, v,
                                           ids({1, 4, -1, 0}, {2, 2}), ids({3, 1}, {2}));
    const auto compare = [&](const Int8Cache& cache, const Tensor& fresh, std::int64_t d) {
      const auto codes = values_of(cache.codes), scales = values_of(cache.scales),
                 expected = values_of(fresh);
      const std::int64_t blocks = int8_cache_blocks(d);
      const auto place = [&](std::int64_t row, std::int64_t head, std::int64_t position) {
        return static_cast<std::size_t>((row * 3 + head) * 5 + position);
      };
      const std::int64_t writes[][4] = {{0, 0, 3, 1}, {0, 1, 3, 4}, {1, 1, 1, 0}};
      for (const auto& [b, t, row, position] : writes)
        for (std::int64_t h = 0; h < 3; ++h)
          for (std::int64_t i = 0; i < d; ++i) {
            const std::size_t at = place(row, h, position);
            const double scale = scales[at * static_cast<std::size_t>(blocks) +
                                        static_cast<std::size_t>(i / int8_cache_block)];
            const double code =
                codes[at * static_cast<std::size_t>(d) + static_cast<std::size_t>(i)];
            const double wanted = expected[static_cast<std::size_t>(((b * 3 + h) * 2 + t) * d + i)];
            ASSERT_GE(code, 1.0);
            // Half a step, and the rounding of the scale and of the value to float32.
            ASSERT_NEAR((code - 128.0) * scale, wanted, 0.5 * scale * (1 + 1e-4));
          }
      const std::size_t untouched = place(1, 0, 4);  // its position was negative
      EXPECT_EQ(scales[untouched * static_cast<std::size_t>(blocks)], 0.0);
    };
    compare(now.keys, k, size);
    compare(now.values, v, value_size);
  }
}

TEST(CacheWriteInt8, ValuesThatAreNotFiniteStayVisible) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const Tensor k = Tensor::from(std::vector<float>{1.0f, bad}, {1, 1, 1, 2});
    const Int8KeysValues now = cache_write(empty_cache(1, 1, 2, 2, 2), k, zeros({1, 1, 1, 2}),
                                           ids({0}, {1, 1}), ids({0}, {1}));
    EXPECT_TRUE(std::isnan(values_of(now.keys.scales)[0]));
    EXPECT_EQ(values_of(now.values.scales)[0], 0.0);
    EXPECT_EQ(values_of(now.values.codes)[0], 128.0);
  }
}

// The purpose of the op: new tokens are written into variables in place, and nothing is copied.
TEST(CacheWriteInt8, WritesIntoVariablesInPlace) {
  const std::int64_t size = 64;
  Variable codes(full({2, 1, 40, size}, 7.0, u8)), scales(full({2, 1, 40, 1}, 3.0)),
      other_codes(zeros({2, 1, 40, size}, u8)), other_scales(zeros({2, 1, 40, 1}));
  const Tensor k = input({{1, 1, 1, size}, f32}, "k"), at = input({{1, 1}, i32}, "at"),
               row = input({{1}, i32}, "row");
  const Int8KeysValues now =
      cache_write({{codes, scales}, {other_codes, other_scales}}, k, k, at, row);
  Program program({.inputs = {k, at, row},
                   .outputs = {},
                   .updates = {{codes, now.keys.codes},
                               {scales, now.keys.scales},
                               {other_codes, now.values.codes},
                               {other_scales, now.values.scales}}});
  EXPECT_EQ(program.plan().instructions.size(), 1u);
  program.run({eval(full({1, 1, 1, size}, 2.0)), ids({2}, {1, 1}), ids({1}, {1})});
  const auto written = values_of(codes), steps = values_of(scales);
  for (std::size_t i = 0; i < written.size(); ++i)
    ASSERT_EQ(written[i], i / 64 == 42 ? 255.0 : 7.0) << i;
  for (std::size_t i = 0; i < steps.size(); ++i)
    ASSERT_EQ(steps[i], i == 42 ? static_cast<double>(2.0f / 127.0f) : 3.0) << i;
}

TEST(CacheWriteInt8, Errors) {
  const auto call = [](const Int8KeysValues& cache, Shape fresh, std::int32_t at,
                       std::int32_t row) {
    const Int8KeysValues now =
        cache_write(cache, zeros(fresh), zeros(fresh), ids({at}, {1, 1}), ids({row}, {1}));
    eval(std::vector{now.keys.codes, now.values.codes});
  };
  const Int8KeysValues good = empty_cache(1, 2, 4, 2, 2);
  expect_error([&] { call(good, {1, 3, 1, 2}, 0, 0); }, {"[cache_write_int8]", "heads"});
  expect_error([&] { call(good, {1, 2, 1, 2}, 4, 0); }, {"cache_write_int8", "4"});
  expect_error([&] { call(good, {1, 2, 1, 2}, 0, 1); }, {"cache_write_int8", "1"});
  Int8KeysValues bad = good;
  bad.values.codes = zeros({1, 2, 4, 2});
  expect_error(
      [&] {
        call(bad, {1, 2, 1, 2}, 0, 0);
      },
      {"[cache_write_int8]", "uint8 (1, 2, 4, 2)", "float32"});
  bad = good;
  bad.keys.scales = zeros({1, 2, 4, 2});
  expect_error(
      [&] {
        call(bad, {1, 2, 1, 2}, 0, 0);
      },
      {"[cache_write_int8]", "scales", "float32 (1, 2, 4, 1)"});
}

}  // namespace
}  // namespace ebb::test
