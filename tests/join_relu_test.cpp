// Relus that are fused into the batch norm before them, in forward and backward, and those that
// must not be.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ebb/ebb.h"
#include "ebb/models/resnet.h"
#include "ops/batch_norm/batch_norm.h"
#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"

namespace ebb::test {
namespace {

Graph graph_of(std::vector<Tensor> outputs) { return {{}, std::move(outputs), {}}; }

int count_of(const Graph& graph, std::string_view op) {
  const auto order = topological_order(graph);
  return static_cast<int>(std::count_if(order.begin(), order.end(),
                                        [&](const auto& node) { return node->op().name() == op; }));
}

// The number of norms and gradients of norms that also compute a relu.
int joined_norms(const Graph& graph) {
  int count = 0;
  for (const auto& node : topological_order(join_relu(graph))) {
    if (&node->op() == &batch_norm_op()) count += node->attributes().as<BatchNormAttributes>().relu;
    if (&node->op() == &batch_norm_grad_op())
      count += node->attributes().as<BatchNormGradAttributes>().relu;
  }
  return count;
}
int joined_norms(std::vector<Tensor> outputs) { return joined_norms(graph_of(std::move(outputs))); }

Tensor random(const Shape& shape, DType dtype) {
  return eval(cast(random_normal(shape, 0.0, 1.0), dtype));
}

struct Norm {
  DType dtype = f32;
  ImageLayout layout = ImageLayout::channels_first;
  Shape shape{4, 6, 3, 3};
  Tensor x = random(shape, dtype), g = random(shape, dtype);
  Tensor weight = random({channels()}, dtype), bias = random({channels()}, dtype);

  std::int64_t channels() const { return shape[channel_axis(shape, layout)]; }
  Tensor operator()() const { return with(weight, bias); }
  Tensor with(const Tensor& w, const Tensor& b) const {
    return batch_norm(x, w, b, {}, {}, Training::yes, 0.1, 1e-5, layout).y;
  }
};

// To the bit, signs of zeros included.
void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  const std::vector<double> x = values_of(a), y = values_of(b);
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint64_t>(x[i]), std::bit_cast<std::uint64_t>(y[i]))
        << what << ", element " << i << ": " << x[i] << " and " << y[i];
}

void expect_same_results_here(const Graph& graph, const std::string& what) {
  Program with(graph), without(graph, CompileOptions{.passes = required_passes()});
  with.run(), without.run();
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    expect_same_bits(with.output(static_cast<int>(i)), without.output(static_cast<int>(i)),
                     what + ", result " + std::to_string(i));
}

// On the CPU, and on a GPU where there is one.
void expect_same_results(const Graph& graph, const std::string& what) {
  expect_same_results_here(graph, what);
  if (cuda_present())
    expect_same_results_here(OtherDevice(device::cuda(0), OtherDevice::Constants::copied)(graph),
                             what + " on CUDA");
}

TEST(JoinRelu, ChangesNoBit) {
  // Columns, runs that are short and long, tiles with rests.
  for (const Shape& shape : {Shape{40, 7}, Shape{9, 5, 3}, Shape{3, 4, 37, 41}, Shape{6, 5, 5, 70}})
    for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
      for (const DType dtype : {f64, f32, f16, bf16}) {
        const Norm norm{.dtype = dtype, .layout = layout, .shape = shape};
        const std::string what =
            to_string(shape) + " " + std::string(name(layout)) + " " + std::string(name(dtype));
        for (const Tensor& weight : {norm.weight, Tensor{}})
          for (const Tensor& bias : {norm.bias, Tensor{}}) {
            const Tensor y = relu(norm.with(weight, bias));
            std::vector<Tensor> wrt;
            for (const Tensor& t : {norm.x, weight, bias})
              if (t) wrt.push_back(t);
            std::vector<Tensor> results = grad(sum(y * norm.g), wrt);
            results.push_back(y);
            const Graph graph = graph_of(results);
            EXPECT_EQ(joined_norms(graph), 2) << what;
            EXPECT_EQ(count_of(join_relu(graph), "relu"), 0) << what;
            EXPECT_EQ(count_of(join_relu(graph), "where"), 0) << what;
            expect_same_results(graph, what);
          }
      }
}

// y is so small that half types round it to zeros of either sign; then the gradient must not pass.
TEST(JoinRelu, RoundsBeforeItLooksAtSigns) {
  for (const DType dtype : {f32, f16, bf16}) {
    Norm norm{.dtype = dtype, .shape = {50, 16}};
    for (const double size : {0x1p-24, 0x1p-25, 0x1p-26, 0x1p-133, 0x1p-134, 0x1p-135}) {
      // Weights are rounded too: what is small is x beside eps.
      const double eps = 1.0;
      const Tensor x = eval(
                       cast(cast(norm.x, f64) * (dtype == bf16 ? size : std::sqrt(size)), dtype)),
                   w = eval(full({16}, dtype == bf16 ? 1.0 : std::sqrt(size), dtype));
      const Tensor y = relu(
          batch_norm(x, w, {}, {}, {}, Training::yes, 0.1, eps, ImageLayout::channels_first).y);
      std::vector<Tensor> results = grad(sum(y * norm.g), {x, w});
      results.push_back(y);
      EXPECT_EQ(joined_norms(results), 2);
      expect_same_results(graph_of(results), fmt::format("{} near {}", name(dtype), size));
    }
  }
}

// A bias that is cast for the norm need not be kept in that form: backward uses the original.
TEST(JoinRelu, KeepsNoCastBias) {
  for (const DType dtype : {f16, bf16})
    for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last}) {
      const Norm norm{.dtype = dtype, .layout = layout};
      const Tensor bias = random({norm.channels()}, f32);
      const Tensor y = relu(norm.with(norm.weight, cast(bias, dtype)));
      const Graph graph = graph_of(grad(sum(y * norm.g), {norm.x, norm.weight, bias}));
      for (const auto& node : topological_order(join_relu(graph)))
        if (&node->op() == &batch_norm_grad_op()) {
          EXPECT_EQ(node->inputs().back(), bias);
        }
      EXPECT_EQ(joined_norms(graph), 2);
      expect_same_results(graph, std::string(name(dtype)));
    }
}

TEST(JoinRelu, KeepsWhatOthersRead) {
  const Norm norm;
  const Tensor y = norm();
  EXPECT_EQ(joined_norms({relu(y)}), 1);
  EXPECT_EQ(joined_norms({relu(y), y}), 0);              // asked for by itself
  EXPECT_EQ(joined_norms({relu(y), exp(y)}), 0);         // read by another
  EXPECT_EQ(joined_norms({relu(y), relu(y)}), 0);        // or twice
  EXPECT_EQ(joined_norms({relu(cast(y, f64))}), 0);      // of another dtype
  EXPECT_EQ(joined_norms({relu(reshape(y, {-1}))}), 0);  // through a view
  EXPECT_EQ(joined_norms({tanh(y)}), 0);
  const std::vector<Tensor> statistics =
      apply(batch_norm_op(), {norm.x}, BatchNormAttributes{1e-5});
  EXPECT_EQ(joined_norms({relu(statistics[1])}), 0);  // the mean
  EXPECT_EQ(joined_norms({relu(relu(y))}), 1);
}

// If y is kept for other readers, backward still does not need relu's output; but if the masked
// gradient itself is an output, it cannot be fused.
TEST(JoinRelu, GradientsOnTheirOwn) {
  const Norm norm;
  const Tensor y = norm(), r = relu(y);
  const std::vector<Tensor> g = grad(sum(r * norm.g), {norm.x, y});
  EXPECT_EQ(joined_norms({g[0]}), 2);
  EXPECT_EQ(joined_norms({g[0], y}), 1);
  EXPECT_EQ(joined_norms({g[0], g[1]}), 1);
  expect_same_results(graph_of({g[0], y}), "y kept");
  expect_same_results(graph_of({g[0], g[1]}), "gradient kept");
  // A sum of gradients is not a masked gradient.
  EXPECT_EQ(joined_norms({grad(sum(r * norm.g) + sum(y * y), {norm.x})[0]}), 0);
}

// Gradients that are masked, but not by the relu of this norm.
TEST(JoinRelu, OtherMasksStay) {
  const Norm norm, other;
  const BatchNormAttributes a{1e-5, true, true};
  const auto y = [&](const Norm& n) { return apply(batch_norm_op(), {n.x, n.weight, n.bias}, a); };
  const std::vector<Tensor> own = y(norm), another = y(other);
  const Tensor zero = scalar_like(norm.x, 0.0), one = scalar_like(norm.x, 1.0), r = relu(own[0]);
  const auto joined = [&](const Tensor& mask, const Tensor& g, const Tensor& otherwise,
                          const BatchNormGradAttributes& b = {1e-5, true}) {
    const Tensor dx = apply(batch_norm_grad_op(),
                            {norm.x, where(mask, otherwise, g), own[1], own[2], norm.weight}, b)[0];
    int gradients = 0;
    for (const auto& node : topological_order(join_relu(graph_of({dx}))))
      if (&node->op() == &batch_norm_grad_op())
        gradients += node->attributes().as<BatchNormGradAttributes>().relu;
    return gradients;
  };
  EXPECT_EQ(joined(less_equal(r, zero), norm.g, zero), 1);
  EXPECT_EQ(joined(less_equal(r, one), norm.g, zero), 0);
  EXPECT_EQ(joined(less_equal(r, zero), norm.g, one), 0);
  EXPECT_EQ(joined(less_equal(zero, r), norm.g, zero), 0);
  EXPECT_EQ(joined(less_equal(r, zero), one, zero), 0);
  EXPECT_EQ(joined(less(r, zero), norm.g, zero), 0);
  EXPECT_EQ(joined(less_equal(tanh(own[0]), zero), norm.g, zero), 0);
  EXPECT_EQ(joined(less_equal(relu(another[0]), zero), norm.g, zero), 0);
  EXPECT_EQ(joined(less_equal(r, zero), norm.g, zero, {1e-3, true}), 0);
}

// --- Shortcuts, on a GPU

Graph on_cuda(const Graph& graph) {
  return OtherDevice(device::cuda(0), OtherDevice::Constants::inputs)(graph);
}

// The number of norms that also compute a sum.
int joined_sums(const Graph& graph) {
  int count = 0;
  for (const auto& node : topological_order(join_relu(on_cuda(graph))))
    if (&node->op() == &batch_norm_op())
      count += node->attributes().as<BatchNormAttributes>().added;
  return count;
}

TEST(JoinRelu, SumsWithShortcuts) {
  for (const Shape& shape : {Shape{40, 7}, Shape{3, 4, 37, 41}, Shape{6, 8, 5, 64}})
    for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
      for (const DType dtype : {f64, f32, f16, bf16}) {
        const Norm norm{.dtype = dtype, .layout = layout, .shape = shape};
        const Tensor shortcut = random(shape, dtype);
        for (const bool first : {true, false}) {
          const Tensor y = norm(), sum_of = first ? y + shortcut : shortcut + y, r = relu(sum_of);
          std::vector<Tensor> results =
              grad(sum(r * norm.g), {norm.x, norm.weight, norm.bias, shortcut});
          results.push_back(r);
          const Graph graph = graph_of(results);
          EXPECT_EQ(joined_sums(graph), 1);
          EXPECT_EQ(count_of(join_relu(on_cuda(graph)), "relu"), 0);
          EXPECT_EQ(count_of(join_relu(graph), "relu"), 1) << "on the CPU it stays";
          expect_same_results(graph, to_string(shape) + " " + std::string(name(dtype)));
        }
      }
}

TEST(JoinRelu, SumsThatStay) {
  const Norm norm, other;
  const Tensor y = norm(), z = other(), x = norm.g;
  EXPECT_EQ(joined_sums(graph_of({relu(y + z)})), 1);     // the later one of both
  EXPECT_EQ(joined_sums(graph_of({y + x})), 0);           // no relu
  EXPECT_EQ(joined_sums(graph_of({relu(y + x), y})), 0);  // y is asked for by itself
  EXPECT_EQ(joined_sums(graph_of({relu(y + y)})), 0);     // or read twice
  const Tensor sum_of = y + x;
  EXPECT_EQ(joined_sums(graph_of({relu(sum_of), exp(sum_of)})), 0);            // the sum is
  EXPECT_EQ(joined_sums(graph_of({relu(y + random({1, 6, 1, 1}, f32))})), 0);  // a broadcast
  EXPECT_EQ(joined_sums(graph_of({relu(y + transpose(x, 2, 3))})), 0);         // a view
  EXPECT_EQ(joined_sums(graph_of({relu(y * x)})), 0);
}

// --- Whole models

models::ResNetConfig small(ImageLayout layout) {
  return {models::ResNetConfig::Block::bottleneck, {1, 1}, {8, 16}, 3, 5, layout};
}

struct SmallRun {
  models::ResNet model;
  TrainStep step;

  SmallRun(ImageLayout layout, Precision precision, std::int64_t parts, bool fuse,
           const char* recompute = "none")
      : model(make<models::ResNet>(device::cpu, f32, small(layout))),
        step(
            model, optim::SGD{.lr = 0.05, .momentum = 0.9},
            [this](const Batch& b) { return cross_entropy(model(b.x()), b.y()); },
            options(precision, parts, fuse, recompute)) {}

  static TrainOptions options(Precision precision, std::int64_t parts, bool fuse,
                              const char* recompute) {
    TrainOptions result;
    result.precision = precision;
    result.accumulate = parts;
    result.compile.passes = fuse ? all_pass_names() : required_passes();
    result.compile.plan.recompute = Recompute::parse(recompute);
    return result;
  }
};

// Two of three norms of a block are followed by relu alone, and the stem's is.
TEST(JoinRelu, PlansOfResNetsHaveNoReluAlone) {
  for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
    for (const Precision precision : {Precision::fp32, Precision::mixed_bf16})
      for (const std::int64_t parts : {1, 2}) {
        SmallRun run(layout, precision, parts, true);
        const Plan plan = run.step.plan({{{4, 3, 8, 8}, f32}, {{4}, i64}});
        check_plan(plan);
        int forward = 0, backward = 0, alone = 0;
        for (const Instruction& instruction : plan.instructions) {
          if (instruction.op == &batch_norm_op())
            forward += instruction.attributes.as<BatchNormAttributes>().relu;
          if (instruction.op == &batch_norm_grad_op())
            backward += instruction.attributes.as<BatchNormGradAttributes>().relu;
          alone += instruction.op->name() == "relu";
        }
        EXPECT_EQ(forward, 5 * parts);
        EXPECT_EQ(backward, 5 * parts);
        EXPECT_EQ(alone, 0);  // those after a sum are joined with it
      }
}

TEST(JoinRelu, ResNetsTrainAsBefore) {
  const auto images = [](std::uint64_t seed) {
    return Batch{{eval(random_normal({6, 3, 8, 8}, 0.0, 1.0, f32, device::cpu, RandomKey{seed})),
                  Tensor::from(std::vector<std::int64_t>{0, 1, 2, 3, 4, 0}, {6})}};
  };
  for (const ImageLayout layout : {ImageLayout::channels_first, ImageLayout::channels_last})
    for (const Precision precision : {Precision::fp32, Precision::mixed_bf16})
      for (const char* recompute : {"none", "blocks", "segment=all"}) {
        SmallRun with(layout, precision, 2, true, recompute), without(layout, precision, 2, false);
        for (std::uint64_t i = 0; i < 3; ++i)
          EXPECT_EQ(with.step(images(i)).loss, without.step(images(i)).loss)
              << name(precision) << " " << recompute << ", step " << i;
      }
}

}  // namespace
}  // namespace ebb::test
