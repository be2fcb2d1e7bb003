#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

struct Sizes {
  std::int64_t batch = 2, heads = 2, kv_heads = 2, queries = 5, keys = 5, size = 4, value_size = 4;

  std::vector<SampleInput> inputs() const {
    return {SampleInput::real({batch, heads, queries, size}),
            SampleInput::real({batch, kv_heads, keys, size}),
            SampleInput::real({batch, kv_heads, keys, value_size})};
  }
};

Sample sample(const char* name, const Sizes& sizes, const AttentionOptions& options) {
  return {name, sizes.inputs(), [options](const auto& x) {
            AttentionOptions with_mask = options;
            if (x.size() > 3) with_mask.mask = x[3];
            return std::vector{scaled_dot_product_attention(x[0], x[1], x[2], with_mask)};
          }};
}

Sample masked(const char* name, const Sizes& sizes, const SampleInput& mask,
              const AttentionOptions& options = {}) {
  Sample result = sample(name, sizes, options);
  result.inputs.push_back(mask);
  return result;
}

TEST(Attention, FullAndCausal) {
  check(sample("full", {}, {}));
  check(sample("causal", {}, {.causal = true}));
  check(sample("scaled", {}, {.scale = 0.3}));
  check(sample("value size of its own", {.size = 3, .value_size = 6}, {.causal = true}));
  check(sample("one query",
               {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 1, .keys = 2, .size = 1}, {}));
}

TEST(Attention, LengthsThatDiffer) {
  check(sample("more keys", {.queries = 3, .keys = 7}, {}));
  check(sample("more queries", {.queries = 7, .keys = 3}, {}));
  check(sample("more keys, causal", {.queries = 3, .keys = 7}, {.causal = true}));
  check(sample("more queries, causal", {.queries = 7, .keys = 3}, {.causal = true}));
}

TEST(Attention, GroupedQueries) {
  check(sample("two heads to one", {.heads = 4, .kv_heads = 2}, {.causal = true}));
  check(sample("all heads to one", {.heads = 3, .kv_heads = 1, .queries = 4, .keys = 6}, {}));
}

TEST(Attention, Masks) {
  check(masked("boolean", {}, SampleInput::boolean({2, 2, 5, 5})));
  check(masked("boolean by key", {}, SampleInput::boolean({2, 1, 1, 5}), {.causal = true}));
  check(masked("boolean of rank 2", {}, SampleInput::boolean({5, 5})));
  check(masked("added", {}, SampleInput::fixed({2, 2, 5, 5}, -2.0, 2.0)));
  check(masked("added by head", {}, SampleInput::fixed({2, 5, 1}, -2.0, 2.0), {.causal = true}));
}

// The first keys of windows: query i sees at most `window` keys up to itself.
SampleInput window_of(std::int64_t queries, std::int64_t window) {
  SampleInput first = SampleInput::index({1, 1, queries, 1}, queries, i32);
  for (std::int64_t i = 0; i < queries; ++i)
    first.values.push_back(static_cast<double>(std::max<std::int64_t>(0, i - window + 1)));
  return first;
}

TEST(Attention, FirstKeys) {
  check(masked("window", {}, window_of(5, 2), {.causal = true}));
  check(masked("of each batch", {}, SampleInput::index({2, 1, 5, 1}, 5, i32)));
  check(masked("causal", {}, SampleInput::index({2, 1, 5, 1}, 7, i32), {.causal = true}));
  check(masked("of rank 2", {.queries = 3, .keys = 7}, SampleInput::index({3, 1}, 7, i32)));
  check(masked("dropout", {.heads = 4}, window_of(5, 3),
               {.causal = true, .dropout = 0.3, .key = RandomKey{7}}));
}

// The same mask as first keys and as a matrix. On the CPU skipped tiles change no bit of values and
// gradients. CUDA kernels scale scores in one product where nothing is masked, and in two
// elsewhere, which rounds scores differently in the last place: values then differ by some
// roundings.
void check_first_keys(Device device, DType dtype, std::int64_t size, const SampleInput& keys,
                      double dropout) {
  const std::int64_t length = keys.shape[2];
  Tensor x[3];
  for (std::uint64_t i = 0; i < 3; ++i)
    x[i] = eval(
        random_normal({2, i == 0 ? 2 : 1, length, size}, 0.0, 1.0, dtype, device, RandomKey{i}));
  const Tensor first = to_device(make_input(keys, f32, 9), device);
  const auto results = [&](const Tensor& mask) {
    const Tensor o = scaled_dot_product_attention(
        x[0], x[1], x[2], {.causal = true, .dropout = dropout, .key = RandomKey{2}, .mask = mask});
    std::vector<Tensor> all = grad(sum(o * o), {x[0], x[1], x[2]});
    all.push_back(o);
    std::vector<double> values;
    for (const Tensor& t : all)
      for (const double value : values_of(t)) values.push_back(value);
    return values;
  };
  const std::vector<double> got = results(first),
                            expected = results(greater_equal(arange(length, i32, device), first));
  const std::string where = fmt::format("{} heads of {}, dropout {}", name(dtype), size, dropout);
  if (device.kind == Device::Kind::cpu) {
    EXPECT_EQ(got, expected) << where;
    return;
  }
  double largest = 0.0, error = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(got[i] - expected[i]));
  }
  EXPECT_LE(error, largest * (dtype == f32 ? 2e-6 : 2e-2)) << where;
}

TEST(Attention, FirstKeysEqualABooleanMask) {
  constexpr std::int64_t length = 300;
  // Numbers of any order too, some above every key.
  for (const SampleInput& keys :
       {window_of(length, 70), SampleInput::index({2, 1, length, 1}, length + 5, i32)})
    for (const double dropout : {0.0, 0.2}) {
      check_first_keys(device::cpu, f32, 16, keys, dropout);
      if (!cuda_present()) continue;
      for (const DType dtype : {f32, bf16})
        for (const std::int64_t size : {20, 64, 96, 200})
          check_first_keys(device::cuda(0), dtype, size, keys, dropout);
    }
}

TEST(Attention, Dropout) {
  const AttentionOptions options{.causal = true, .dropout = 0.4, .key = RandomKey{11}};
  check(sample("dropout", {}, options));
  check(sample("dropout in groups", {.heads = 4, .queries = 3, .keys = 6}, options));
  check(masked("dropout and mask", {}, SampleInput::boolean({5, 5}),
               {.dropout = 0.25, .key = RandomKey{5}}));
}

// Several tiles in both directions, none of them full, each path of the kernels.
TEST(Attention, ManyTiles) {
  const Sizes sizes{.batch = 1,
                    .heads = 2,
                    .kv_heads = 1,
                    .queries = 130,
                    .keys = 257,
                    .size = 20,
                    .value_size = 36};
  const AttentionOptions kinds[] = {
      {},
      {.causal = true},
      {.causal = true, .dropout = 0.3, .key = RandomKey{3}},
  };
  for (const AttentionOptions& options : kinds) {
    Sample many = sample("many tiles", sizes, options);
    many.second_order = false;
    check(many);
  }
  Sample square =
      sample("whole vectors", {.queries = 100, .keys = 100, .size = 32, .value_size = 64},
             {.causal = true});
  square.second_order = false;
  check(square);
  Sample padded = masked("padding mask", sizes, SampleInput::boolean({1, 1, 1, 257}));
  padded.second_order = false;
  check(padded);
}

// Heads of 64 and less in rows of whole pieces: tiles of 64 and 128 rows, full and not, one and
// many, of groups of heads, with every rule for scores.
TEST(Attention, TilesOfWholePieces) {
  const Sizes kinds[] = {
      {.batch = 1,
       .heads = 2,
       .kv_heads = 1,
       .queries = 128,
       .keys = 64,
       .size = 64,
       .value_size = 64},
      {.batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .queries = 130,
       .keys = 452,
       .size = 64,
       .value_size = 64},
      {.batch = 1,
       .heads = 3,
       .kv_heads = 3,
       .queries = 325,
       .keys = 197,
       .size = 40,
       .value_size = 24},
  };
  check_cuda(sample("one query", {.queries = 1, .keys = 5, .size = 64, .value_size = 64}, {}));
  for (const Sizes& sizes : kinds) {
    const std::int64_t b = sizes.batch, h = sizes.heads, t = sizes.queries, s = sizes.keys;
    check_cuda(sample("full", sizes, {}));
    check_cuda(sample("causal", sizes, {.causal = true, .scale = 0.2}));
    check_cuda(sample("dropout", sizes, {.causal = true, .dropout = 0.3, .key = RandomKey{3}}));
    check_cuda(masked("padding mask", sizes, SampleInput::boolean({b, 1, 1, s})));
    check_cuda(masked("window", sizes, window_of(t, 50), {.causal = true}));
    check_cuda(masked("first keys and dropout", sizes, SampleInput::index({b, 1, t, 1}, s, i32),
                      {.causal = true, .dropout = 0.1, .key = RandomKey{6}}));
    check_cuda(masked("mask by head and key", sizes, SampleInput::boolean({h, 1, s}),
                      {.causal = true, .dropout = 0.2, .key = RandomKey{5}}));
    check_cuda(masked("mask and dropout", sizes, SampleInput::boolean({b, h, t, s}),
                      {.dropout = 0.1, .key = RandomKey{4}}));
    check_cuda(
        masked("added mask", sizes, SampleInput::fixed({h, 1, s}, -2.0, 2.0), {.causal = true}));
  }
}

TEST(Attention, QueriesThatSeeNothingGiveZeros) {
  const auto number = [](const Shape& shape, std::uint64_t seed) {
    return make_input(SampleInput::real(shape), f32, seed);
  };
  const Tensor q = number({1, 1, 3, 4}, 1), k = number({1, 1, 2, 4}, 2),
               v = number({1, 1, 2, 4}, 3);
  const float none = -std::numeric_limits<float>::infinity();
  const Tensor masks[] = {
      eval(cast(Tensor::from(std::vector<float>{1, 1, 0, 0, 0, 1}, {3, 2}), b8)),
      Tensor::from(std::vector<float>{0, 0, none, none, none, 0}, {3, 2})};
  for (const Tensor& mask : masks) {
    const Tensor o = scaled_dot_product_attention(q, k, v, {.mask = mask});
    const std::vector<Tensor> g = grad(sum(o * o), {q, k, v});
    const auto values = o.to_vector<float>(), dq = g[0].to_vector<float>();
    for (std::size_t d = 4; d < 8; ++d) {
      EXPECT_EQ(values[d], 0.0f);
      EXPECT_EQ(dq[d], 0.0f);
    }
    for (const Tensor& t : g)
      for (float x : t.to_vector<float>()) EXPECT_TRUE(std::isfinite(x));
    EXPECT_NE(values[8], 0.0f);
  }
  EXPECT_EQ(
      scaled_dot_product_attention(q, zeros({1, 1, 0, 4}), zeros({1, 1, 0, 4})).to_vector<float>(),
      std::vector<float>(12, 0.0f));
}

TEST(Attention, ReadsProjectionsWithoutCopies) {
  check({"strided",
         {SampleInput::real({2, 5, 3, 4}), SampleInput::real({2, 5, 3, 4}),
          SampleInput::real({2, 5, 3, 4})},
         [](const auto& x) {
           const auto heads = [](const Tensor& t) { return permute(t, {0, 2, 1, 3}); };
           return std::vector{permute(scaled_dot_product_attention(heads(x[0]), heads(x[1]),
                                                                   heads(x[2]), {.causal = true}),
                                      {0, 2, 1, 3})};
         }});
  // One (B, T, 3 · H · D) projection, cut in three and seen by heads.
  const Tensor x = input({{2, 5, 36}, f32}, "projection");
  const std::vector<Tensor> parts = chunk(x, 2, 3);
  const auto heads = [](const Tensor& t) {
    return permute(reshape(t, {2, 5, 3, 4}), {0, 2, 1, 3});
  };
  const Tensor y = scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
  // The result lies token by token too, as the product after it reads it.
  const Tensor w = input({{12, 12}, f32}, "weight");
  const Program program({.inputs = {x, w},
                         .outputs = {matmul(reshape(permute(y, {0, 2, 1, 3}), {10, 12}), w)},
                         .updates = {}});
  EXPECT_EQ(program.plan().instructions.size(), 2u);
}

TEST(Attention, NoMatrixOfScoresInMemory) {
  const std::int64_t length = 2048;
  const TensorType type{{1, 1, length, 16}, f32};
  const Tensor q = input(type, "q"), k = input(type, "k"), v = input(type, "v");
  const Tensor o =
      scaled_dot_product_attention(q, k, v, {.causal = true, .dropout = 0.1, .key = RandomKey{1}});
  const Program program(
      {.inputs = {q, k, v}, .outputs = grad(sum(o * o), {q, k, v}), .updates = {}});
  // Three inputs, three gradients, the result and its gradient are 1 MiB; the matrix would be 16.
  EXPECT_LT(program.plan().peak, 2_MiB + threads() * 256_KiB);
}

TEST(Attention, ThreadsChangeNoBit) {
  const auto run = [] {
    Tensor x[3];
    for (std::uint64_t i = 0; i < 3; ++i)
      x[i] = make_input(SampleInput::real({2, 3, 70, 16}), f32, i);
    const Tensor o = scaled_dot_product_attention(x[0], x[1], x[2], {.causal = true});
    std::vector<Tensor> results = grad(sum(o * o), {x[0], x[1], x[2]});
    results.push_back(o);
    std::vector<float> values;
    for (const Tensor& t : results)
      for (float value : t.to_vector<float>()) values.push_back(value);
    return values;
  };
  const int before = threads();
  set_threads(1);
  const auto one = run();
  set_threads(3);
  EXPECT_EQ(run(), one);
  set_threads(before);
}

TEST(Attention, Errors) {
  const PathScope path("h.0.attn");
  const auto use = [](const Shape& q, const Shape& k, const Shape& v,
                      const AttentionOptions& options = {}) {
    return [=] { scaled_dot_product_attention(zeros(q), zeros(k), zeros(v), options); };
  };
  const Shape x{2, 4, 5, 8};
  expect_error(use({2, 5, 8}, x, x), {"[attention]", "h.0.attn", "rank 4", "rank 3"});
  expect_error(use({1, 4, 5, 8}, x, x), {"[attention]", "batch sizes", "1, 2 and 2"});
  expect_error(use(x, x, {2, 4, 6, 8}), {"[attention]", "keys and values", "4 by 5 and 4 by 6"});
  expect_error(use({2, 6, 5, 8}, x, x), {"[attention]", "multiple", "6 and 4"});
  expect_error(use({2, 4, 5, 6}, x, x), {"[attention]", "head size", "6 and 8"});
  expect_error(use(x, x, x, {.dropout = 1.0}), {"[attention]", "[0, 1)", "1"});
  expect_error(use(x, x, x, {.scale = INFINITY}), {"[attention]", "finite", "inf"});
  expect_error(use(x, x, x, {.mask = zeros({3, 5}, b8)}), {"[attention]", "mask", "(2, 4, 5, 5)"});
  expect_error(use(x, x, x, {.mask = zeros({5, 5}, i64)}), {"[attention]", "bool", "int64"});
  expect_error(use(x, x, x, {.mask = zeros({5, 5}, i32)}),
               {"[attention]", "first keys", "(2 or 1, 1, 5, 1)", "(1, 1, 5, 5)"});
  expect_error([&] { scaled_dot_product_attention(zeros(x), zeros(x, f64), zeros(x)); },
               {"[attention]", "same dtype"});
  expect_error([&] { scaled_dot_product_attention(zeros(x, i32), zeros(x, i32), zeros(x, i32)); },
               {"[attention]", "floating-point"});
}

}  // namespace
}  // namespace ebb::test
