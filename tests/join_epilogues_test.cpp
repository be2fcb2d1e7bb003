// Sums and gradients of activations that become epilogues of the product or the norm's gradient
// before them, and those that must not.
#include <gtest/gtest.h>

#include <algorithm>

#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

int count_of(const Graph& graph, std::string_view op) {
  const auto order = topological_order(graph);
  return static_cast<int>(std::count_if(order.begin(), order.end(),
                                        [&](const auto& node) { return node->op().name() == op; }));
}

Graph graph_of(std::vector<Tensor> outputs) { return {{}, std::move(outputs), {}}; }

// The same graph as it would be for a device that need not be here: nothing is planned.
Graph on_cuda(std::vector<Tensor> outputs) {
  return OtherDevice(device::cuda(0), OtherDevice::Constants::inputs)(graph_of(std::move(outputs)));
}

int joined_products(std::vector<Tensor> outputs) {
  return count_of(join_epilogues(on_cuda(std::move(outputs))), "matmul_then");
}

Tensor random(const Shape& shape, DType dtype = f32) {
  return eval(cast(random_normal(shape, 0.0, 1.0), dtype));
}

// --- The gradient of a norm

struct Residual {
  Tensor x = random({2, 3, 8}), weight = random({8}), bias = random({8});
  Tensor loss(const Tensor& y) const { return sum(square(x + y)); }
};

TEST(JoinEpilogues, ResidualsJoinTheNormsGradient) {
  const Residual r;
  for (const Tensor& y : {layer_norm(r.x, r.weight, r.bias), rms_norm(r.x, r.weight)}) {
    const Graph graph = graph_of(grad(r.loss(tanh(y)), {r.x, r.weight})),
                joined = join_epilogues(graph);
    EXPECT_EQ(count_of(joined, "add"), count_of(graph, "add") - 1);
    Program with(graph), without(graph, CompileOptions{.passes = required_passes()});
    with.run(), without.run();
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(values_of(with.output(i)), values_of(without.output(i))) << "gradient " << i;
  }
}

TEST(JoinEpilogues, NormsKeepGradientsThatOthersRead) {
  const Residual r;
  const Tensor y = layer_norm(r.x, r.weight, r.bias), other = random({2, 3, 8});
  const Tensor dx = grad(sum(y * other), {r.x})[0];
  const auto adds = [](const std::vector<Tensor>& outputs) {
    return count_of(join_epilogues(graph_of(outputs)), "add");
  };
  EXPECT_EQ(adds({dx + other}), 0);
  EXPECT_EQ(adds({dx + other, dx}), 1);        // it is asked for by itself
  EXPECT_EQ(adds({dx + other, dx * 2.0}), 1);  // and read by another
  EXPECT_EQ(adds({dx + dx}), 1);               // or twice
  EXPECT_EQ(adds({dx + random({8})}), 1);      // rows of one kind, not a gradient of x
  EXPECT_EQ(adds({dx + expand(random({8}), {2, 3, 8})}), 1);  // the same, spelt out
}

// A sum may not delay the norm's gradient, nor read a value that is computed from it.
TEST(JoinEpilogues, NormsDoNotWait) {
  const Residual r;
  const std::vector<Tensor> g =
      grad(sum(layer_norm(r.x, r.weight, r.bias) * random({2, 3, 8})), {r.x, r.weight});
  const Tensor later = expand(g[1], {2, 3, 8}) * r.x;
  EXPECT_EQ(count_of(join_epilogues(graph_of({g[0] + later})), "add"), 1);
}

// --- Sums of a norm's gradient

// The op's own test checks the sums' values.
TEST(JoinSums, BiasesOfResidualsAreSummedByTheNormOnCuda) {
  const Residual r;
  const Tensor bias = random({8});
  for (const bool centred : {true, false}) {
    const Tensor x = r.x + bias;
    const Tensor y = centred ? layer_norm(x, r.weight, r.bias) : rms_norm(x, r.weight);
    const std::vector<Tensor> gradients = grad(sum(square(x + tanh(y))), {r.x, r.weight, bias});
    const auto sums_left_out = [](const Graph& graph) {
      const Graph joined = join_epilogues(graph);
      return count_of(joined, "sum") - count_of(join_sums(joined), "sum");
    };
    EXPECT_EQ(sums_left_out(on_cuda(gradients)), 1);
    EXPECT_EQ(sums_left_out(graph_of(gradients)), 0);
  }
}

TEST(JoinSums, OtherSumsStay) {
  const Residual r;
  const Tensor y = layer_norm(r.x, r.weight, r.bias), g = grad(sum(y * tanh(y)), {r.x})[0];
  for (const Tensor& other : {sum(g, {2}), sum(g, {0}), sum(reshape(g, {12, 4}), {0}), sum(g)}) {
    const Graph graph = on_cuda({other});
    EXPECT_EQ(count_of(join_sums(graph), "sum"), count_of(graph, "sum")) << to_string(other.type());
  }
}

// --- Products

struct Linear {
  Tensor x = random({2, 3, 4}), weight = random({8, 4}), bias = random({8});
  Tensor y = random({2, 3, 8});
  Tensor operator()() const { return linear(x, weight, bias); }
};

TEST(JoinEpilogues, ResidualsJoinProductsOnCuda) {
  const Linear l;
  const Graph joined = join_epilogues(on_cuda({l.y + l()}));
  EXPECT_EQ(count_of(joined, "matmul_then"), 1);
  EXPECT_EQ(count_of(joined, "matmul") + count_of(joined, "add"), 0);
  EXPECT_EQ(joined.outputs[0].shape(), (Shape{2, 3, 8}));
  EXPECT_EQ(joined_products({l() + l.y}), 1);
  EXPECT_EQ(joined_products({matmul(l.x, transpose(l.weight, 0, 1)) + l.y}), 1);
  // The same graphs on the CPU, where fusing would gain nothing.
  EXPECT_EQ(count_of(join_epilogues(graph_of({l.y + l()})), "matmul_then"), 0);
}

TEST(JoinEpilogues, ProductsThatOthersReadStayApart) {
  const Linear l;
  const Tensor product = l();
  EXPECT_EQ(joined_products({product + l.y, product}), 0);
  EXPECT_EQ(joined_products({product + l.y, exp(product)}), 0);
  EXPECT_EQ(joined_products({product + random({8})}), 0);
  EXPECT_EQ(joined_products({product + expand(random({8}), {2, 3, 8})}), 0);
  EXPECT_EQ(joined_products({expand(product, {2, 2, 3, 8}) + random({2, 2, 3, 8})}), 0);
  EXPECT_EQ(joined_products({tanh(product) + l.y}), 0);
  EXPECT_EQ(joined_products({product + exp(product)}), 0);
}

TEST(JoinEpilogues, ProductsDoNotWait) {
  const Linear l;
  const Tensor product = l(), later = matmul(l.y, l.weight);  // (2, 3, 4)
  const Tensor after = matmul(later, transpose(l.weight, 0, 1));
  // The second product can add the first one's result, but never the other way round.
  const Graph joined = join_epilogues(on_cuda({product + after}));
  ASSERT_EQ(count_of(joined, "matmul_then"), 1);
  for (const auto& node : topological_order(joined))
    if (node->op().name() == "matmul_then") {
      EXPECT_EQ(node->inputs().size(), 3u);  // no bias: it is the second
    }
  const Tensor twice = l.y + product;
  EXPECT_EQ(joined_products({twice + tanh(twice)}), 1);
}

TEST(JoinEpilogues, SumsOfGradientsStayApart) {
  const Linear l;
  const Tensor total = l.y + l();
  total.node()->set_category(Category::gradients);
  EXPECT_EQ(joined_products({total}), 0);
}

TEST(JoinEpilogues, SlopesOfGeluJoinProductsOfHalves) {
  const auto joined = [](DType dtype, Tensor (*activation)(const Tensor&)) {
    const Tensor x = random({2, 3, 8}, dtype), in = random({8, 16}, dtype),
                 out = random({16, 8}, dtype);
    return joined_products(grad(sum(matmul(activation(matmul(x, in)), out)), {in, x}));
  };
  EXPECT_EQ(joined(bf16, gelu_tanh), 1);
  EXPECT_EQ(joined(f16, gelu_tanh), 1);
  EXPECT_EQ(joined(f32, gelu_tanh), 0);  // the library's slope has too few digits
  EXPECT_EQ(joined(bf16, gelu), 0);
}

}  // namespace
}  // namespace ebb::test
