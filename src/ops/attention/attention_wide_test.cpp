// Heads of 65 to 256, which have CUDA kernels of their own: every size they are rounded up to,
// lengths around the edges of tiles, groups of heads, and every rule for scores. Values and
// gradients are compared with float64's.
#include <gtest/gtest.h>

#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

struct Heads {
  std::int64_t batch, heads, kv_heads, queries, keys, size, value_size;

  std::vector<SampleInput> inputs() const {
    return {SampleInput::real({batch, heads, queries, size}),
            SampleInput::real({batch, kv_heads, keys, size}),
            SampleInput::real({batch, kv_heads, keys, value_size})};
  }
  std::string text() const {
    return to_string(Shape{batch, heads, kv_heads, queries, keys, size, value_size});
  }
};

void check_heads(const Heads& heads, const AttentionOptions& options,
                 const std::vector<SampleInput>& mask = {}) {
  SCOPED_TRACE(heads.text() + (options.causal ? " causal" : " full"));
  Sample sample{"attention " + heads.text(), heads.inputs(),
                [options](const std::vector<Tensor>& x) {
                  AttentionOptions with_mask = options;
                  if (x.size() > 3) with_mask.mask = x[3];
                  return std::vector{scaled_dot_product_attention(x[0], x[1], x[2], with_mask)};
                }};
  sample.inputs.insert(sample.inputs.end(), mask.begin(), mask.end());
  // With two keys, gradients of scores are differences of numbers that are nearly equal, of which
  // float32's products on tensor cores leave out up to 2⁻²¹.
  if (heads.keys <= 2) sample.float_tolerance_factor = 128.0;
  check_cuda(sample);
}

TEST(AttentionWide, LengthsAtTheEdgesOfTiles) {
  std::int64_t turn = 0;  // every size meets every kind of length, not every length
  for (const std::int64_t length : {2, 63, 64, 65, 127, 128, 129, 200})
    for (const std::int64_t size : {72, 80, 96, 104, 112, 128}) {
      const std::int64_t batch = turn % 2 == 0 ? 1 : 3, heads = turn % 3 == 0 ? 4 : 2;
      check_heads({batch, heads, 2, length, length, size, size},
                  {.causal = turn++ / 2 % 2 == 0, .scale = 0.15});
    }
  // One query. With one key as well, gradients would be 0 up to rounding.
  check_heads({1, 4, 2, 1, 7, 72, 72}, {});
  check_heads({3, 2, 2, 1, 200, 128, 128}, {});
  check_heads({1, 4, 1, 1000, 1000, 128, 128}, {.causal = true});
  check_heads({1, 2, 2, 1000, 1000, 80, 80}, {});
}

TEST(AttentionWide, LengthsAndSizesThatDiffer) {
  check_heads({2, 2, 1, 130, 452, 128, 128}, {.causal = true});
  check_heads({2, 2, 1, 452, 130, 96, 96}, {.causal = true});
  check_heads({1, 3, 3, 325, 197, 128, 40}, {});
  check_heads({1, 3, 1, 70, 300, 64, 112}, {.causal = true});
}

TEST(AttentionWide, RulesForScores) {
  for (const Heads& h : {Heads{1, 2, 1, 128, 64, 128, 128}, Heads{2, 4, 2, 130, 200, 96, 96},
                         Heads{1, 3, 3, 200, 130, 72, 72}}) {
    const std::int64_t b = h.batch, n = h.heads, t = h.queries, s = h.keys;
    check_heads(h, {.causal = true, .dropout = 0.3, .key = RandomKey{3}});
    check_heads(h, {}, {SampleInput::boolean({b, 1, 1, s})});
    check_heads(h, {.causal = true, .dropout = 0.2, .key = RandomKey{5}},
                {SampleInput::boolean({n, 1, s})});
    check_heads(h, {.dropout = 0.1, .key = RandomKey{4}}, {SampleInput::boolean({b, n, t, s})});
    check_heads(h, {.causal = true}, {SampleInput::fixed({n, 1, s}, -2.0, 2.0)});
  }
}

TEST(AttentionWide, HeadsAbove128) {
  std::int64_t turn = 0;
  for (const std::int64_t length : {2, 15, 33, 64, 129, 200})
    for (const std::int64_t size : {132, 160, 192, 250, 256}) {
      check_heads({turn % 2 + 1, 4, turn % 3 == 0 ? 4 : 2, length, length, size, size},
                  {.causal = turn / 2 % 2 == 0, .scale = 0.1});
      ++turn;
    }
  check_heads({1, 2, 1, 70, 300, 256, 64}, {.causal = true});
  check_heads({1, 2, 1, 300, 70, 72, 200}, {.causal = true});
  for (const Heads& h : {Heads{2, 4, 2, 130, 200, 192, 192}, Heads{1, 2, 2, 200, 130, 256, 256}}) {
    const std::int64_t b = h.batch, n = h.heads, t = h.queries, s = h.keys;
    check_heads(h, {.causal = true, .dropout = 0.3, .key = RandomKey{3}});
    check_heads(h, {}, {SampleInput::boolean({b, 1, 1, s})});
    check_heads(h, {.dropout = 0.1, .key = RandomKey{4}}, {SampleInput::boolean({b, n, t, s})});
    check_heads(h, {.causal = true}, {SampleInput::fixed({n, 1, s}, -2.0, 2.0)});
    check_heads(h, {.causal = true}, {SampleInput::index({b, 1, t, 1}, t, i32)});
  }
}

// Products of float32 keep its accuracy on tensor cores, also for long sums of numbers of one sign,
// unless TF32 is allowed.
TEST(AttentionWide, Float32IsExactUnlessTf32IsAllowed) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (const std::int64_t size : {32, 64, 128, 256}) {
    std::vector<std::vector<double>> results[3];  // float64, float32, TF32
    for (int kind = 0; kind < 3; ++kind) {
      Tensor x[3];
      for (std::uint64_t i = 0; i < 3; ++i)
        x[i] = cast(eval(random_uniform({1, 2, 4096, size}, i == 2 ? 1.0 : -1.0, i == 2 ? 2.0 : 1.0,
                                        f32, device::cuda(0), RandomKey{i})),
                    kind == 0 ? f64 : f32);
      const Tensor o = scaled_dot_product_attention(x[0], x[1], x[2]);
      std::vector<Tensor> outputs = grad(sum(o * o), {x[0], x[1], x[2]});
      outputs.push_back(o);
      CompileOptions options;
      options.plan.tf32 = kind == 2;
      Program program({{}, outputs, {}}, options);
      program.run();
      for (int i = 0; i < 4; ++i) results[kind].push_back(values_of(program.output(i)));
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const auto error = [&](int kind) {
        double most = 0.0, largest = 0.0;
        for (std::size_t n = 0; n < results[0][i].size(); ++n) {
          largest = std::max(largest, std::abs(results[0][i][n]));
          most = std::max(most, std::abs(results[0][i][n] - results[kind][i][n]));
        }
        return most / largest;
      };
      // dq and dk are small differences of weights' gradients, which have the size of v.
      EXPECT_LT(error(1), i < 2 ? 2e-4 : 2e-6) << size << " output " << i;
      EXPECT_GT(error(2), 4.0 * error(1)) << size << " output " << i;
      EXPECT_LT(error(2), i < 2 ? 0.5 : 2e-3) << size << " output " << i;
    }
  }
}

// More tiles than a GPU has multiprocessors, so that blocks go through several.
TEST(AttentionWide, RepeatsToTheBit) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (const DType dtype : {bf16, f16, f32})
    for (const bool causal : {true, false}) {
      Tensor x[3];
      for (std::uint64_t i = 0; i < 3; ++i)
        x[i] = eval(random_normal({3, i == 0 ? 16 : 4, 1000, 128}, 0.0, 1.0, dtype, device::cuda(0),
                                  RandomKey{i}));
      const Tensor o = scaled_dot_product_attention(x[0], x[1], x[2], {.causal = causal});
      std::vector<Tensor> outputs = grad(sum(o * o), {x[0], x[1], x[2]});
      outputs.push_back(o);
      Program program({{}, outputs, {}}, {});
      std::vector<std::vector<double>> first;
      for (int run = 0; run < 20; ++run) {
        program.run();
        for (int i = 0; i < 4; ++i) {
          const std::vector<double> values = values_of(program.output(i));
          if (run == 0)
            first.push_back(values);
          else
            ASSERT_EQ(values, first[static_cast<std::size_t>(i)])
                << "output " << i << " of run " << run;
        }
      }
    }
}

}  // namespace
}  // namespace ebb::test
