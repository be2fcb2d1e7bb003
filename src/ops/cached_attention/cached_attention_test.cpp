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

struct Sizes {
  std::int64_t batch, heads, kv_heads, tokens, size, value_size, rows, cache;
};

Sample sample(const char* name, const Sizes& s, std::vector<double> positions,
              std::vector<double> rows, const CachedAttentionOptions& options = {}) {
  return {name,
          {SampleInput::real({s.batch, s.heads, s.tokens, s.size}),
           SampleInput::real({s.rows, s.kv_heads, s.cache, s.size}),
           SampleInput::real({s.rows, s.kv_heads, s.cache, s.value_size}),
           whole_numbers({s.batch, s.tokens}, std::move(positions)),
           whole_numbers({s.batch}, std::move(rows))},
          [options](const auto& x) {
            return std::vector{cached_attention(x[0], x[1], x[2], x[3], x[4], options)};
          }};
}

TEST(CachedAttention, Samples) {
  check(sample("one token each", {3, 2, 2, 1, 8, 8, 4, 9}, {0, 8, -1}, {2, 0, 3}));
  check(sample("grouped heads", {2, 6, 2, 2, 5, 3, 2, 7}, {2, 3, 5, 6}, {1, 0}));
  check(sample("a window", {1, 2, 1, 3, 4, 4, 1, 12}, {3, 8, 11}, {0}, {.window = 4}));
  Sample longer = sample("more than one tile and piece", {1, 3, 1, 2, 16, 16, 1, 300}, {70, 290},
                         {0}, {.scale = 0.7});
  longer.second_order = false;
  check(longer);
}

TEST(CachedAttention, CudaSizes) {  // heads as models have them, over several pieces of keys
  for (const std::int64_t size : {64, 80, 128, 256})
    check_cuda(sample("a model's heads", {2, 8, 2, 1, size, size, 2, 400}, {399, 130}, {1, 0}));
  check_cuda(sample("a window over pieces", {2, 8, 2, 2, 64, 64, 2, 400}, {398, 399, 130, -1},
                    {1, 0}, {.window = 100}));
}

// The result for a token depends neither on other tokens, nor on the cache's size, nor on threads.
TEST(CachedAttention, ATokenDependsOnItsOwnSequenceAlone) {
  const std::int64_t heads = 4, kv_heads = 2, size = 24, cache = 200;
  const Tensor q = eval(random_normal({1, heads, 7, size}, 0.0, 1.0)),
               k = eval(random_normal({2, kv_heads, cache, size}, 0.0, 1.0)),
               v = eval(random_normal({2, kv_heads, cache, size}, 0.0, 1.0));
  std::vector<std::int32_t> positions;
  for (int t = 0; t < 7; ++t) positions.push_back(120 + t);
  const auto row = [](std::int32_t r) { return Tensor::from(std::vector<std::int32_t>{r}, {1}); };
  const auto all =
      contiguous(
          permute(cached_attention(q, k, v, Tensor::from(positions, {1, 7}), row(1)), {0, 2, 1, 3}))
          .to_vector<float>();
  for (std::int64_t t : {0, 3, 6}) {
    const Tensor one = slice(q, 2, t, t + 1),
                 at = Tensor::from(std::vector{positions[static_cast<std::size_t>(t)]}, {1, 1});
    const auto same = [&](const Tensor& y) {
      const auto values = contiguous(y).to_vector<float>();
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], all[static_cast<std::size_t>(t * heads * size) + i]);
    };
    same(cached_attention(one, k, v, at, row(1)));
    same(cached_attention(one, contiguous(slice(slice(k, 0, 1, 2), 2, 0, 150)),
                          contiguous(slice(slice(v, 0, 1, 2), 2, 0, 150)), at, row(0)));
  }
}

TEST(CachedAttention, Errors) {
  const auto call = [](Shape q, Shape k, const CachedAttentionOptions& options = {}) {
    return cached_attention(zeros(q), zeros(k), zeros(k), zeros({q[0], q[2]}, i32),
                            zeros({q[0]}, i32), options);
  };
  expect_error([&] { call({1, 3, 1, 4}, {1, 2, 8, 4}); }, {"[cached_attention]", "multiple"});
  expect_error([&] { call({1, 2, 1, 4}, {1, 2, 8, 6}); }, {"[cached_attention]", "head size"});
  expect_error(
      [&] {
        call({1, 2, 1, 4}, {1, 2, 8, 4}, {.window = -1});
      },
      {"[cached_attention]", "window", "-1"});
  expect_error(
      [&] {
        eval(cached_attention(zeros({1, 1, 1, 4}), zeros({1, 1, 8, 4}), zeros({1, 1, 8, 4}),
                              Tensor::from(std::vector<std::int32_t>{8}, {1, 1}), zeros({1}, i32)));
      },
      {"cached_attention", "8"});
}

}  // namespace
}  // namespace ebb::test
