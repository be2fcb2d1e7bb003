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

// Codes and scales of a cache, the same in every dtype under test.
Int8Cache random_cache(const Shape& shape, std::uint64_t seed) {
  Shape scales = shape;
  scales[3] = int8_cache_blocks(shape[3]);
  return {eval(cast(random_uniform(shape, 1.0, 256.0), u8), seed),
          eval(random_uniform(scales, 0.001, 0.01), seed + 1)};
}

struct Sizes {
  std::int64_t batch, heads, kv_heads, tokens, size, value_size, rows, cache;
};

Sample sample(const char* name, const Sizes& s, std::vector<double> positions,
              std::vector<double> rows, const CachedAttentionOptions& options = {}) {
  const Int8KeysValues cache{random_cache({s.rows, s.kv_heads, s.cache, s.size}, 1),
                             random_cache({s.rows, s.kv_heads, s.cache, s.value_size}, 7)};
  return {name,
          {SampleInput::real({s.batch, s.heads, s.tokens, s.size}),
           whole_numbers({s.batch, s.tokens}, std::move(positions)),
           whole_numbers({s.batch}, std::move(rows))},
          [=](const auto& x) {
            return std::vector{cached_attention(x[0], cache, x[1], x[2], options)};
          }};
}

TEST(CachedAttentionInt8, Samples) {
  check(sample("one token each", {3, 2, 2, 1, 8, 8, 4, 9}, {0, 8, -1}, {2, 0, 3}));
  check(sample("grouped heads", {2, 6, 2, 2, 5, 3, 2, 7}, {2, 3, 5, 6}, {1, 0}));
  check(sample("a window", {1, 2, 1, 3, 4, 4, 1, 12}, {3, 8, 11}, {0}, {.window = 4}));
  Sample longer = sample("several blocks of a head and tiles of keys",
                         {1, 2, 1, 2, 130, 65, 1, 150}, {70, 140}, {0}, {.scale = 0.3});
  longer.second_order = false;
  check(longer);
}

// Writes to the cache and reads it again, as a model does.
TEST(CachedAttentionInt8, OfNewTokens) {
  const Int8KeysValues cache{random_cache({2, 2, 4, 66}, 1), random_cache({2, 2, 4, 5}, 3)};
  Sample written{"written, then read",
                 {SampleInput::real({2, 4, 2, 66}), SampleInput::fixed({2, 2, 2, 66}, -1.0, 1.0),
                  SampleInput::fixed({2, 2, 2, 5}, -1.0, 1.0), whole_numbers({2, 2}, {0, 1, 2, -1}),
                  whole_numbers({2}, {1, 0})},
                 [=](const auto& x) {
                   const Int8KeysValues now = cache_write(cache, x[1], x[2], x[3], x[4]);
                   return std::vector{cached_attention(x[0], now, x[3], x[4])};
                 }};
  written.low_precision = false;  // rounding an input can move a code to its neighbour
  check(written);
}

// A token's result depends neither on other tokens nor on the size of the cache.
TEST(CachedAttentionInt8, ATokenDependsOnItsOwnSequenceAlone) {
  const std::int64_t heads = 4, kv_heads = 2, size = 24, tokens = 200;
  const Tensor q = eval(random_normal({1, heads, 7, size}, 0.0, 1.0));
  const Int8KeysValues cache{random_cache({2, kv_heads, tokens, size}, 3),
                             random_cache({2, kv_heads, tokens, size}, 5)};
  std::vector<std::int32_t> positions;
  for (int t = 0; t < 7; ++t) positions.push_back(120 + t);
  const auto row = [](std::int32_t r) { return Tensor::from(std::vector<std::int32_t>{r}, {1}); };
  const auto all =
      contiguous(permute(cached_attention(q, cache, Tensor::from(positions, {1, 7}), row(1)),
                         {0, 2, 1, 3}))
          .to_vector<float>();
  const auto shorter = [](const Int8Cache& c) {
    const auto part = [](const Tensor& t) {
      return contiguous(slice(slice(t, 0, 1, 2), 2, 0, 150));
    };
    return Int8Cache{part(c.codes), part(c.scales)};
  };
  const Int8KeysValues small{shorter(cache.keys), shorter(cache.values)};
  for (std::int64_t t : {0, 3, 6}) {
    const Tensor one = slice(q, 2, t, t + 1),
                 at = Tensor::from(std::vector{positions[static_cast<std::size_t>(t)]}, {1, 1});
    for (const Tensor& y :
         {cached_attention(one, cache, at, row(1)), cached_attention(one, small, at, row(0))}) {
      const auto values = contiguous(y).to_vector<float>();
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], all[static_cast<std::size_t>(t * heads * size) + i]);
    }
  }
}

TEST(CachedAttentionInt8, Errors) {
  const auto call = [](Shape q, Shape k) {
    const Int8KeysValues cache{random_cache(k, 1), random_cache(k, 3)};
    return cached_attention(zeros(q), cache, zeros({q[0], q[2]}, i32), zeros({q[0]}, i32));
  };
  expect_error([&] { call({1, 3, 1, 4}, {1, 2, 8, 4}); }, {"[cached_attention_int8]", "multiple"});
  expect_error([&] { call({1, 2, 1, 4}, {1, 2, 8, 6}); }, {"[cached_attention_int8]", "head size"});
}

}  // namespace
}  // namespace ebb::test
