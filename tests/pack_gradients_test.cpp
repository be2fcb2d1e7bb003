// Gradients of q, k and v that attention's backward op writes into one tensor, and those that it
// must not.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/models/gpt2.h"
#include "ebb/models/llama.h"
#include "ebb/train/train_step.h"
#include "ops/attention/attention.h"
#include "passes/passes.h"
#include "support/op_check.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

// A projection that is cut into queries, keys and values.
struct Sizes {
  std::int64_t batch = 2, length = 5, heads = 3, kv_heads = 3, size = 4, value_size = 4;

  std::vector<std::int64_t> parts() const {
    return {heads * size, kv_heads * size, kv_heads * value_size};
  }
  Shape projection() const {
    return {batch, length, heads * size + kv_heads * (size + value_size)};
  }
};

Tensor attend(const Tensor& projection, const Sizes& s, const AttentionOptions& options = {}) {
  const std::vector<Tensor> parts = split(projection, 2, s.parts());
  const auto heads = [&](std::size_t part, std::int64_t count) {
    return permute(reshape(parts[part], {s.batch, s.length, count, -1}), {0, 2, 1, 3});
  };
  return scaled_dot_product_attention(heads(0, s.heads), heads(1, s.kv_heads), heads(2, s.kv_heads),
                                      options);
}

Sample sample(const char* name, const Sizes& s, const AttentionOptions& options) {
  return {name, {SampleInput::real(s.projection())}, [=](const auto& x) {
            return std::vector{attend(x[0], s, options)};
          }};
}

// A program without fusion keeps the concat: `check` compares its bits with those of the fused
// program, on every available device.
TEST(PackGradients, ChangesNoBit) {
  const AttentionOptions causal{.causal = true},
      dropping{.causal = true, .dropout = 0.2, .key = RandomKey{7}};
  check(sample("heads of their own", {}, causal));
  check(sample("groups of heads", {.heads = 4, .kv_heads = 2}, dropping));
  check(sample("sizes that are odd", {.heads = 2, .kv_heads = 1, .size = 3, .value_size = 5}, {}));
  // Rows that do not begin at whole words of two halves, though queries have pairs.
  check(sample("odd values", {.heads = 2, .kv_heads = 1, .size = 6, .value_size = 7}, causal));
  const Sizes tiles[] = {
      {.length = 70, .heads = 2, .kv_heads = 2, .size = 64, .value_size = 64},
      {.length = 130, .heads = 4, .kv_heads = 2, .size = 40, .value_size = 24},
      {.batch = 1, .length = 67, .heads = 2, .kv_heads = 1, .size = 96, .value_size = 128},
      {.batch = 1, .length = 65, .heads = 1, .kv_heads = 1, .size = 132, .value_size = 9},
  };
  for (const Sizes& sizes : tiles)
    for (const AttentionOptions& options : {causal, dropping})
      check_cuda(sample("tiles", sizes, options));
}

Tensor random(const Shape& shape, DType dtype, std::uint64_t seed) {
  return make_input(SampleInput::real(shape), dtype, seed);
}

// The op by itself: packed, as three results that are concatenated, and as its reference.
TEST(PackGradients, PackedIsTheConcat) {
  for (const Sizes& s : {Sizes{}, Sizes{.length = 37, .heads = 4, .kv_heads = 2, .size = 16},
                         Sizes{.heads = 2, .kv_heads = 1, .size = 3, .value_size = 5}})
    for (DType dtype : {f64, f32, f16, bf16}) {
      const Tensor q = random({s.batch, s.heads, s.length, s.size}, dtype, 1),
                   k = random({s.batch, s.kv_heads, s.length, s.size}, dtype, 2),
                   v = random({s.batch, s.kv_heads, s.length, s.value_size}, dtype, 3),
                   d = random({s.batch, s.heads, s.length, s.value_size}, dtype, 4);
      const AttentionAttributes a{
          .causal = true, .scale = 0.4, .dropout = 0.3, .key = RandomKey{5}};
      const std::vector<Tensor> forward = apply(attention_op(), {q, k, v}, a);
      const std::vector<Tensor> inputs{q, k, v, permute(forward[0], {0, 2, 1, 3}), forward[1], d};
      std::vector<Tensor> apart = apply(attention_grad_op(), inputs, AttentionGradAttributes{a});
      for (Tensor& gradient : apart) gradient = flatten(gradient, 2);
      const AttentionGradAttributes packing{a, true};
      const Tensor packed = apply1(attention_grad_op(), inputs, packing);
      EXPECT_EQ(packed.shape(), s.projection());
      const auto values = values_of(packed);
      EXPECT_EQ(values, values_of(concat(apart, 2))) << name(dtype);
      if (dtype != f64) continue;
      const auto expected = values_of(attention_grad_reference(inputs, packing)[0]);
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-12);
    }
}

TEST(PackGradients, LengthsMustAgree) {
  const Tensor q = zeros({1, 1, 3, 4}), k = zeros({1, 1, 5, 4});
  expect_error(
      [&] {
        apply1(attention_grad_op(), {q, k, k, q, zeros({1, 1, 3}), q},
               AttentionGradAttributes{{}, true});
      },
      {"[attention_grad]", "3 queries have 5 keys"});
}

int concats(const Graph& graph) {
  const auto order = topological_order(pack_gradients(graph));
  return static_cast<int>(std::count_if(
      order.begin(), order.end(), [](const auto& node) { return node->op().name() == "concat"; }));
}

int concats(const std::vector<Tensor>& outputs) { return concats(Graph{{}, outputs, {}}); }

TEST(PackGradients, OthersStayApart) {
  const Sizes s;
  const Tensor x = random(s.projection(), f32, 1);
  const Tensor dx = grad(sum(square(attend(x, s))), {x})[0];
  EXPECT_EQ(concats({dx}), 0);
  EXPECT_EQ(concats({reshape(dx, {10, 36}) * 2.0}), 0);

  const Tensor joined = concat(split(x, 2, s.parts()), 2);  // no gradients
  EXPECT_EQ(concats({joined}), 1);

  // Parts in another order than queries, keys and values, of separate tensors, of two attentions,
  // or with another reader.
  const Tensor q = random({2, 3, 5, 4}, f32, 2), k = random({2, 3, 5, 4}, f32, 3),
               v = random({2, 3, 5, 4}, f32, 4);
  const auto gradients = [&] {
    const Tensor y = scaled_dot_product_attention(q, k, v);
    std::vector<Tensor> g = grad(sum(square(y)), {q, k, v});
    for (Tensor& t : g) t = reshape(permute(t, {0, 2, 1, 3}), {2, 5, 12});
    return g;
  };
  const std::vector<Tensor> g = gradients(), h = gradients();
  EXPECT_EQ(concats({concat(g, 2)}), 0);
  EXPECT_EQ(concats({concat({g[1], g[0], g[2]}, 2)}), 1);
  EXPECT_EQ(concats({concat({g[0], g[1], h[2]}, 2)}), 1);
  EXPECT_EQ(concats({concat(g, 2), g[1]}), 1);
  EXPECT_EQ(concats({concat(g, 2), exp(g[1])}), 1);
  EXPECT_EQ(concats({concat(g, 1)}), 1);  // along tokens
  EXPECT_EQ(concats({concat({g[0], g[1]}, 2)}), 1);
  const auto by_head = [&](const Tensor& t) {
    return permute(reshape(t, {2, 5, 3, 4}), {0, 2, 1, 3});
  };
  EXPECT_EQ(concats({concat({by_head(g[0]), by_head(g[1]), by_head(g[2])}, 3)}), 1);
  EXPECT_EQ(concats({concat({exp(g[0]), g[1], g[2]}, 2)}), 1);
}

// A planned step of a model: how many instructions are of an op.
template <class Model>
std::vector<std::string> planned(Model& model, const Recompute& recompute, std::int64_t parts) {
  TrainOptions options;
  options.accumulate = parts;
  options.compile.plan.recompute = recompute;
  TrainStep step(
      model, optim::AdamW{}, [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
  const Plan plan = step.plan({{{4, 16}, i64}, {{4, 16}, i64}});
  check_plan(plan);
  std::vector<std::string> ops;
  for (const Instruction& instruction : plan.instructions) ops.emplace_back(instruction.op->name());
  return ops;
}

TEST(PackGradients, Gpt2HasNoConcat) {
  for (DType dtype : {f32, bf16})
    for (const char* recompute : {"none", "blocks"})
      for (std::int64_t parts : {1, 2}) {
        auto gpt2 = make<models::Gpt2>(
            device::cpu, dtype,
            models::Gpt2Config{
                .vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .width = 32});
        const auto ops = planned(gpt2, Recompute::parse(recompute), parts);
        EXPECT_EQ(std::count(ops.begin(), ops.end(), "concat"), 0);
        EXPECT_EQ(std::count(ops.begin(), ops.end(), "attention_grad"), 2 * parts);
      }
  // Queries, keys and values of products of their own.
  auto llama = make<models::Llama>(device::cpu, f32,
                                   models::LlamaConfig{.vocabulary = 61,
                                                       .width = 32,
                                                       .hidden = 64,
                                                       .layers = 2,
                                                       .heads = 4,
                                                       .key_value_heads = 2,
                                                       .context = 16});
  const auto ops = planned(llama, Recompute::parse("none"), 1);
  EXPECT_EQ(std::count(ops.begin(), ops.end(), "attention_grad"), 2);
}

}  // namespace
}  // namespace ebb::test
