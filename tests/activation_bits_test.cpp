// Activations in 8 bits: what is kept as codes, how far gradients are from the exact ones, that
// memory falls, and that neither budgets nor ranks nor checkpoints change a bit.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/io/plan_file.h"
#include "ebb/models/gpt2.h"
#include "ebb/quantised.h"
#include "ebb/train/train_step.h"
#include "ebb/workloads/workload.h"
#include "support/op_check.h"
#include "support/plan_check.h"
#include "support/rank_training.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

workloads::Options sizes(const std::string& name, Precision precision = Precision::fp32) {
  workloads::Options o;
  o.name = name, o.seed = 3, o.batch = 4, o.dtype = parameter_dtype(precision);
  if (name == "resnet") return o.depth = 18, o;
  o.layers = 2, o.heads = 2, o.width = 64, o.sequence = 32;
  if (name != "bert") o.vocabulary = 61;
  if (name != "gpt2") o.hidden = 160;  // no multiple of a block
  return o;
}

TrainOptions bits(std::optional<int> wanted, Precision precision = Precision::fp32) {
  TrainOptions options;
  options.activation_bits = wanted;
  options.precision = precision;
  options.compile.seed = 5;
  options.compile.plan.effort = Effort::quick;
  return options;
}

struct Training {
  std::vector<double> losses, weights;
  Plan plan;
  Bytes least;
};

// With plain gradient descent at the rate 1, weights move by their gradients.
Training train(const workloads::Options& options, const TrainOptions& how, int steps,
               const optim::Optimizer& rule = optim::AdamW{.lr = 3e-3}) {
  const auto task = workloads::make_workload(options);
  data::Loader loader(task->train, {.batch = task->batch_size, .seed = 5});
  TrainStep step(
      task->model(), rule, [&](const Batch& b) { return task->loss(b); }, how);
  const std::vector<TensorType> types = loader.types().front();
  Training run{{}, {}, step.plan(types), {}};
  check_plan(run.plan);
  if (!how.compile.plan.budget && !how.compile.planner)
    run.least = least_budget(step.trace(types), step.options().compile);
  for (int i = 0; i < steps; ++i) run.losses.push_back(step(loader.next()).loss);
  if (steps > 0) {
    EXPECT_EQ(step.arena()->size(), run.plan.arena());
    EXPECT_LE(step.resident(types), run.plan.peak);
    for (const nn::NamedVariable& p : step.weights())
      for (const double value : values_of(p.variable)) run.weights.push_back(value);
  }
  return run;
}

double norm(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> difference(std::vector<double> x, const std::vector<double>& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
  return x;
}

CodedActivations coded(const std::string& name, Precision precision = Precision::fp32) {
  workloads::Options o = sizes(name, precision);
  if (name != "resnet") o.dropout = 0.0;
  const auto task = workloads::make_workload(o);
  TrainStep step(
      task->model(), optim::AdamW{}, [&](const Batch& b) { return task->loss(b); },
      bits(8, precision));
  return coded_activations(step.trace(task->train->types(task->batch_size)),
                           *step.options().compile.passes);
}

std::map<std::string, int> counted(const std::vector<CodedActivations::Value>& values) {
  std::map<std::string, int> ops;
  for (const CodedActivations::Value& value : values) ++ops[value.op];
  return ops;
}

using Ops = std::map<std::string, int>;

// Of a block of GPT-2: the inputs of two norms, q, k and v in one product, attention's result, and
// GELU's input. Norms and GELU are run again for the products that read them. The last norm's
// result is the loss's, which reads it exactly.
TEST(ActivationBits, WhatIsKept) {
  const CodedActivations gpt2 = coded("gpt2");
  EXPECT_EQ(counted(gpt2.kept), (Ops{{"add", 5}, {"matmul", 4}, {"attention", 2}}));
  EXPECT_EQ(counted(gpt2.again), (Ops{{"layer_norm", 4}, {"gelu_tanh", 2}}));
  std::int64_t elements = 0;
  for (const CodedActivations::Value& value : gpt2.kept) elements += value.type.shape.elements();
  EXPECT_EQ(elements, 4 * 32 * 64 * (5 + 2 * (3 + 1 + 4)));
  EXPECT_LT(gpt2.codes().count, elements * 109 / 100);  // a scale of 4 bytes for 64

  // Rotated q and k, v, attention, and the factors of SwiGLU.
  const CodedActivations llama = coded("llama");
  const Ops again = counted(llama.again);
  EXPECT_EQ(again.at("rms_norm"), 4);
  EXPECT_EQ(again.at("silu"), 2);
  EXPECT_EQ(again.at("mul"), 2);
  EXPECT_EQ(counted(llama.kept).at("attention"), 2);
  EXPECT_EQ(counted(llama.kept).at("rotary"), 4);

  // Batch norms' inputs, and the pooled mean that the last product reads: the sign of ReLU's
  // results is needed exactly.
  for (const auto& [op, count] : counted(coded("resnet").kept))
    EXPECT_EQ(count, op == "mul" ? 1 : 20) << op;
  EXPECT_TRUE(coded("resnet").again.empty());
}

// Forward reads no codes. A block of 64 normal numbers has its largest near 2.5 deviations, so that
// a step between codes is 0.02 of them, and errors, which are spread evenly over a step, are
// 0.02 / √12.
TEST(ActivationBits, AValueIsWithinHalfAStep) {
  const Encoding encoding{LowBits::int8, activation_block, false, 64, 1024};
  const Tensor x = eval(random_normal({64, 1024}, 0.0, 1.0, f32), 7);
  const std::vector<double> from = values_of(x),
                            to = values_of(dequantise(quantise(x, encoding), encoding, f32));
  EXPECT_NEAR(norm(difference(to, from)) / norm(from), 0.0057, 0.0006);
  for (std::size_t begin = 0; begin < from.size(); begin += activation_block) {
    double largest = 0.0;
    for (std::size_t i = begin; i < begin + activation_block; ++i)
      largest = std::max(largest, std::abs(from[i]));
    for (std::size_t i = begin; i < begin + activation_block; ++i)
      ASSERT_LE(std::abs(to[i] - from[i]), largest / 254 * 1.00001);  // the quotient is rounded
  }
}

TEST(ActivationBits, GradientsAreNearTheExactOnes) {
  for (const char* name : {"gpt2", "llama", "bert", "resnet"}) {
    const optim::SGD rule{.lr = 1.0};
    const std::vector<double> before =
        train(sizes(name), bits({}), 1, optim::SGD{.lr = 1e-30}).weights;
    const Training exact = train(sizes(name), bits({}), 1, rule),
                   rounded = train(sizes(name), bits(8), 1, rule);
    EXPECT_EQ(rounded.losses, exact.losses) << name;
    const double error =
        norm(difference(rounded.weights, exact.weights)) / norm(difference(exact.weights, before));
    EXPECT_GT(error, 1e-5) << name;
    // Errors of values are 0.6 % and independent; a few of them meet in a gradient.
    EXPECT_LT(error, 0.02) << name;
    RecordProperty(name, std::to_string(error));
  }
}

TEST(ActivationBits, LossesAreNearTheExactOnes) {
  for (const char* name : {"gpt2", "llama"}) {
    const std::vector<double> exact = train(sizes(name), bits({}), 60).losses,
                              rounded = train(sizes(name), bits(8), 60).losses;
    EXPECT_LT(rounded.back(), 0.97 * rounded.front()) << name;  // it learns
    EXPECT_NEAR(rounded.back(), exact.back(), 0.01 * exact.back()) << name;
    EXPECT_EQ(train(sizes(name), bits(8), 3).losses,
              std::vector<double>(rounded.begin(), rounded.begin() + 3))
        << name << " differs between two runs";
  }
}

// Sizes at which activations are most of the peak.
TEST(ActivationBits, MemoryFalls) {
  for (const auto& [name, precision, most] : {std::tuple{"gpt2", Precision::fp32, 0.45},
                                              {"llama", Precision::fp32, 0.45},
                                              {"bert", Precision::fp32, 0.5},
                                              {"resnet", Precision::fp32, 0.85},
                                              {"gpt2", Precision::split_bf16, 0.65}}) {
    workloads::Options o = sizes(name, precision);
    o.batch = 8;
    if (o.layers) o.layers = 6, o.sequence = 128;
    const Plan whole = train(o, bits({}, precision), 0).plan,
               codes = train(o, bits(8, precision), 0).plan;
    EXPECT_LT(static_cast<double>(codes.arena().count),
              most * static_cast<double>(whole.arena().count))
        << name << " in " << ebb::name(precision);
  }
}

TEST(ActivationBits, BudgetsChangeNoBit) {
  for (const char* name : {"gpt2", "llama", "bert", "resnet"}) {
    const Training free = train(sizes(name), bits(8), 3);
    ASSERT_LT(free.least, free.plan.peak);
    for (const double share : {0.0, 0.5}) {
      TrainOptions how = bits(8);
      how.compile.plan.budget =
          free.least + Bytes{static_cast<std::int64_t>(
                           share * static_cast<double>((free.plan.peak - free.least).count))};
      const Training kept = train(sizes(name), how, 3);
      EXPECT_LE(kept.plan.peak, *how.compile.plan.budget);
      EXPECT_EQ(kept.losses, free.losses) << name << " at " << share;
      EXPECT_EQ(kept.weights, free.weights) << name << " at " << share;
    }
    for (const char* way : {"blocks", "selective"}) {
      TrainOptions how = bits(8);
      how.compile.plan.recompute = Recompute::parse(way);
      EXPECT_EQ(train(sizes(name), how, 3).weights, free.weights) << name << " " << way;
    }
    TrainOptions how = bits(8);
    how.compile.plan.budget = free.least;
    how.compile.plan.offload.budgets[Tier::disk] = 1_GiB;
    how.compile.plan.offload.smallest = 4_KiB;
    how.compile.offload_folder = std::filesystem::temp_directory_path();
    EXPECT_EQ(train(sizes(name), how, 3).weights, free.weights) << name << " with a disk";
  }
}

TEST(ActivationBits, OtherPassesChangeNoBit) {
  for (const auto& [name, precision] : {std::pair{"gpt2", Precision::fp32},
                                        {"resnet", Precision::fp32},
                                        {"gpt2", Precision::fp8},
                                        {"llama", Precision::fp8}}) {
    const workloads::Options o = sizes(name, precision);
    const std::vector<double> all = train(o, bits(8, precision), 2).weights;
    for (const PassList& passes :
         {required_passes(), passes_without(all_pass_names(), {"share_codes"})}) {
      TrainOptions other = bits(8, precision);
      other.compile.passes = passes;
      EXPECT_EQ(train(o, other, 2).weights, all) << name << " in " << ebb::name(precision);
    }
  }
}

// A layer before the loss, whose gradient is that of the loss by a product. Losses and norms that
// are written with elementwise ops read differences, exponentials and reciprocal roots exactly.
TEST(ActivationBits, LossesOfElementwiseOpsAreExact) {
  const Tensor x = input({{64, 256}, f32}, "x"), target = input({{64, 256}, f32}, "target");
  const Variable weight(eval(random_normal({256, 256}, 0.0, 0.1, f32), 1));
  const Tensor y = matmul(x, weight);
  const Tensor square_loss = mean(square(y - target)),
               log_sum_exp = mean(log(sum(exp(y), {1})) - mean(y * target, {1})),
               normed = mean(square(y * rsqrt(mean(square(y), {1}, Keep::yes))) * target);
  for (const Tensor& loss : {square_loss, log_sum_exp, normed}) {
    const Graph graph{{x, target}, grad(loss, {weight}), {}};
    for (const auto& value :
         coded_activations(graph, with_activation_codes(required_passes())).kept)
      EXPECT_TRUE(value.op == "matmul" || value.op == "mul") << value.op;
  }
}

// Softmax ignores what all keys have in common. Codes do not: a channel with a large bias makes the
// steps of its block coarse, and docs/techniques/activation-bits.md says how much that costs.
TEST(ActivationBits, AKeyChannelWithALargeBiasCostsPrecision) {
  constexpr std::int64_t items = 2, tokens = 128, heads = 2, size = 64, width = heads * size;
  const auto error_with_bias = [&](float bias_of_channel) {
    const Tensor x = input({{items * tokens, width}, f32}, "x");
    std::vector<Tensor> weights;
    for (std::uint64_t seed = 11; seed < 14; ++seed)
      weights.push_back(Variable(eval(random_normal({width, width}, 0.0, 0.1, f32), seed)));
    std::vector<float> bias(width, 0.0f);
    bias[3] = bias[size + 3] = bias_of_channel;
    const auto by_heads = [&](const Tensor& t) {
      return transpose(reshape(t, {items, tokens, heads, size}), 1, 2);
    };
    const Tensor out =
        scaled_dot_product_attention(by_heads(matmul(x, weights[0])),
                                     by_heads(matmul(x, weights[1]) + Tensor::from(bias, {width})),
                                     by_heads(matmul(x, weights[2])), {.causal = true});
    const Tensor target = eval(random_normal(out.shape(), 0.0, 1.0, f32), 77);
    const Tensor given[] = {eval(random_normal(x.shape(), 0.0, 1.0, f32), 5)};
    const Graph graph{{x}, {grad(sum(out * target), {weights[0]})[0]}, {}};
    std::vector<std::vector<double>> gradients;
    for (const bool rounded : {false, true}) {
      CompileOptions options;
      options.passes = rounded ? with_activation_codes(all_pass_names()) : all_pass_names();
      Program program(graph, options);
      program.run(given);
      gradients.push_back(values_of(program.output(0)));
    }
    return norm(difference(gradients[1], gradients[0])) / norm(gradients[0]);
  };
  EXPECT_NEAR(error_with_bias(0.0f), 0.015, 0.005);
  EXPECT_NEAR(error_with_bias(20.0f), 0.14, 0.05);
}

// Codes of an item do not depend on the others of its batch.
TEST(ActivationBits, MicroBatches) {
  TrainOptions cut = bits(8);
  cut.accumulate = 2;
  workloads::Options o = sizes("gpt2");
  o.dropout = 0.0;  // whose masks are others in micro-batches
  const optim::SGD rule{.lr = 1.0};
  const std::vector<double> parts = train(o, cut, 1, rule).weights,
                            whole = train(o, bits(8), 1, rule).weights;
  // Sums in another order. Other codes would change weights by 1e-3 of their gradients.
  EXPECT_LT(norm(difference(parts, whole)), 1e-6 * norm(whole));
}

TEST(ActivationBits, HalfPrecisionAndFp8) {
  for (const Precision precision :
       {Precision::mixed_bf16, Precision::mixed_fp16, Precision::pure_bf16, Precision::fp8}) {
    const workloads::Options o = sizes("gpt2", precision);
    const Training exact = train(o, bits({}, precision), 8),
                   rounded = train(o, bits(8, precision), 8);
    EXPECT_LT(rounded.plan.arena(), exact.plan.arena()) << name(precision);
    EXPECT_NEAR(rounded.losses.back(), exact.losses.back(), 0.01 * exact.losses.back());
    TrainOptions how = bits(8, precision);
    how.compile.plan.budget = rounded.least;
    EXPECT_EQ(train(o, how, 8).losses, rounded.losses) << name(precision);
  }
  // Factors of products are kept in fp8's own codes.
  EXPECT_EQ(counted(coded("gpt2", Precision::fp8).again), Ops{});
}

struct Gpt2Run {
  models::Gpt2 model = make<models::Gpt2>(
      device::cpu, f32,
      models::Gpt2Config{
          .vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .width = 32, .dropout = 0.1});
  TrainStep step{model, optim::AdamW{.lr = 1e-2},
                 [this](const Batch& b) { return model.loss(b.x(), b.y()); }, bits(8)};

  static Batch batch(std::uint64_t key) {
    const auto ids = [&](std::uint64_t k) {
      return eval(cast(random_uniform({4, 16}, 0.0, 61.0, f32, device::cpu, RandomKey{k}), i64));
    };
    return {{ids(2 * key), ids(2 * key + 1)}};
  }
};

TEST(ActivationBits, ACheckpointContinuesToTheBit) {
  const TemporaryFolder folder;
  std::vector<double> expected, got;
  Gpt2Run whole;
  for (std::uint64_t i = 0; i < 6; ++i) {
    if (i == 3) io::save_checkpoint(folder / "run", whole.model, whole.step);
    expected.push_back(whole.step(Gpt2Run::batch(i)).loss);
  }
  Gpt2Run resumed;
  io::load_checkpoint(folder / "run", resumed.model, resumed.step);
  for (std::uint64_t i = 3; i < 6; ++i) got.push_back(resumed.step(Gpt2Run::batch(i)).loss);
  EXPECT_EQ(got, std::vector<double>(expected.begin() + 3, expected.end()));
}

TEST(ActivationBits, RanksChangeNoBit) {
  for (const char* model : {"gpt2", "llama"}) {
    RankTraining run{.model = model, .leaves = 2, .batch = 4, .width = 64};
    const RankResult exact = train(run, nullptr);
    run.activation_bits = 8;
    const RankResult alone = train(run, nullptr);
    EXPECT_NE(alone.weights, exact.weights);
    run.ranks = 2;
    for (const Shard shard : {Shard::nothing, Shard::parameters}) {
      run.shard = shard;
      expect_same_bits(run, alone);
    }
  }
}

// A plan file holds the list of passes.
TEST(ActivationBits, PlanFiles) {
  const TemporaryFolder folder;
  const Training made = train(sizes("gpt2"), bits(8), 3);
  const auto task = workloads::make_workload(sizes("gpt2"));
  TrainStep step(
      task->model(), optim::AdamW{.lr = 3e-3}, [&](const Batch& b) { return task->loss(b); },
      bits(8));
  const std::vector<TensorType> types = task->train->types(task->batch_size);
  io::save_plan(step.plan(types), step.trace(types), folder / "step.plan");
  const auto from_file = [&](TrainOptions how) {
    how.compile.planner = [&](const Graph& graph) {
      return io::load_plan(folder / "step.plan", graph);
    };
    return train(sizes("gpt2"), how, 3);
  };
  EXPECT_EQ(from_file(bits(8)).weights, made.weights);
  expect_error([&] { from_file(bits({})); }, {"the plan was made for activations in 8 bits"});
}

// The gradient of gelu(2 x) where x, which only backward's codes hold, is not finite.
TEST(ActivationBits, ValuesThatAreNotFiniteReachTheGradient) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const Tensor x = input({{2, 256}, f32}, "x");
    const Tensor h = x * 2.0;
    const Variable weight(Tensor::from(std::vector<float>(256, 1.0f), {256}));
    const Tensor loss = mean(gelu(h * weight));
    Graph graph{{x}, {loss, grad(loss, {weight})[0]}, {}};
    const PassList list = with_activation_codes(all_pass_names());
    EXPECT_EQ(coded_activations(graph, list).kept.size(), 1u);  // h, from which the rest follows
    CompileOptions options;
    options.passes = list;
    Program program(graph, options);
    std::vector<float> values(512, 0.5f);
    values[300] = bad;
    program.run({Tensor::from(values, {2, 256})});
    const std::vector<float> gradient = program.output(1).to_vector<float>();
    EXPECT_FALSE(std::isfinite(gradient[44]));
    EXPECT_TRUE(std::isfinite(gradient[200]));  // of another block
  }
}

TEST(ActivationBits, WhatItIsNotFor) {
  expect_error([] { train(sizes("gpt2"), bits(4), 0); }, {"8 bits", "4"});
  workloads::Options mlp;
  mlp.name = "mlp";
  expect_error([&] { train(mlp, bits(8), 0); }, {"activation_bits", "nothing of that kind"});
  expect_error([] { passes_without(all_pass_names(), {"code_activations"}); },
               {"code_activations", "only if it is asked for"});

  // A loss that depends on a gradient.
  const auto task = workloads::make_workload(sizes("gpt2"));
  TrainStep penalised(
      task->model(), optim::AdamW{},
      [&](const Batch& b) {
        const Tensor loss = task->loss(b);
        const Tensor weight = task->model().parameters().front().variable;
        return loss + mean(square(grad(loss, {weight})[0]));
      },
      bits(8));
  expect_error([&] { penalised.trace(task->train->types(task->batch_size)); },
               {"without gradients inside"});
}

}  // namespace
}  // namespace ebb::test
