// Which small calls are grouped, and how groups change a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ebb/ebb.h"
#include "ebb/models/bert.h"
#include "ebb/models/gpt2.h"
#include "ebb/train/train_step.h"
#include "ops/adam/adam.h"
#include "ops/group/group.h"
#include "ops/sgd/sgd.h"
#include "passes/passes.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/random_graph.h"

namespace ebb::test {
namespace {

std::map<std::string, int> count_ops(const Plan& plan) {
  std::map<std::string, int> counts;
  for (const Instruction& i : plan.instructions) ++counts[std::string(i.op->name())];
  return counts;
}

Graph grouped_on_cpu(const Graph& graph) {
  return group_small(insert_copies(fuse_pointwise(graph)), Device::Kind::cpu);
}

// The calls in each group of a graph.
std::vector<std::size_t> groups_of(const Graph& graph) {
  std::vector<std::size_t> sizes;
  for (const auto& node : topological_order(graph))
    if (node->op().name().ends_with("_group"))
      sizes.push_back(node->attributes().as<GroupAttributes>().calls.size());
  return sizes;
}

// --- Models

struct Counts {
  std::map<std::string, int> separate, grouped;
  std::size_t instructions_separate, instructions_grouped;
  Bytes peak_separate, peak_grouped;
};

template <class Model, class Config>
Counts plans_of(const Config& config, Precision precision, const std::vector<TensorType>& batch,
                TrainOptions options) {
  Counts counts{};
  options.precision = precision;
  for (const bool group : {false, true}) {
    options.compile.passes =
        group ? all_pass_names() : passes_without(all_pass_names(), {"group_small"});
    auto model = make<Model>(device::cuda(0), parameter_dtype(precision), config);
    optim::Optimizer optimizer = optim::AdamW{.weight_decay = 0.1};
    TrainStep step(
        model, optimizer.with(optim::no_decay_for_vectors()),
        [&](const Batch& b) { return model.loss(b.x(), b.y()); }, options);
    const Plan& plan = step.plan(batch);
    check_plan(plan);
    (group ? counts.grouped : counts.separate) = count_ops(plan);
    (group ? counts.instructions_grouped : counts.instructions_separate) = plan.instructions.size();
    (group ? counts.peak_grouped : counts.peak_separate) = plan.peak;
    for (const Instruction& i : plan.instructions)
      EXPECT_TRUE(plan.runs_beside(i) || i.op->name() != "adam_group") << "not beside the rest";
  }
  return counts;
}

// 12 layers with 4 biases and 2 norms each, and a norm at the end: 98 vectors.
TEST(GroupSmall, AStepOfGpt2) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  Counts counts =
      plans_of<models::Gpt2>(models::Gpt2Config{}, Precision::fp32,
                             {{{2, 256}, i64}, {{2, 256}, i64}}, {.clip_norm = 1.0, .compile = {}});
  EXPECT_EQ(counts.separate["adam"], 148);
  EXPECT_EQ(counts.separate["sum_squares"], 148);
  EXPECT_EQ(counts.grouped["adam"], 50);
  EXPECT_EQ(counts.grouped["adam_group"], 1);
  EXPECT_EQ(counts.grouped["sum_squares"], 50);
  EXPECT_EQ(counts.grouped["sum_squares_group"], 1);
  EXPECT_EQ(counts.instructions_separate - counts.instructions_grouped, 2u * (98 - 1));
  EXPECT_LE(counts.peak_grouped, counts.peak_separate + 2_MiB);
}

// 124 vectors, and 2 matrices of two rows: of token types and of classes.
TEST(GroupSmall, AStepOfBert) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  Counts counts = plans_of<models::BertClassifier>(models::BertConfig{}, Precision::mixed_fp16,
                                                   {{{2, 128}, i64}, {{2}, i64}}, {});
  EXPECT_EQ(counts.separate["adam"], 201);
  EXPECT_EQ(counts.separate["sum_squares"], 201);
  EXPECT_EQ(counts.grouped["adam"], 75);
  EXPECT_EQ(counts.grouped["adam_group"], 2);  // 2 small matrices are decayed
  EXPECT_EQ(counts.grouped["sum_squares"], 75);
  EXPECT_EQ(counts.grouped["sum_squares_group"], 1);
  EXPECT_EQ(counts.instructions_separate - counts.instructions_grouped, 249u);
  EXPECT_LE(counts.peak_grouped, counts.peak_separate + 2_MiB);
}

// --- Which calls

struct Parameter {
  Variable value, velocity;
  Tensor gradient;
};

Parameter parameter(std::int64_t size, std::uint64_t key) {
  return {Variable(zeros({size}, f32)), Variable(zeros({size}, f32)),
          random_normal({size}, 0.0, 1.0, f32, device::cpu, RandomKey{key})};
}

void add_step(Graph& graph, const Parameter& p, const Tensor& scale) {
  const SgdResult r =
      sgd_update(p.value, p.gradient, p.velocity, full({}, 0.1, f64), scale, {.momentum = 0.9});
  graph.updates.push_back({p.value, r.parameter});
  graph.updates.push_back({p.velocity, r.velocity});
}

TEST(GroupSmall, NotOnTheCpu) {
  Graph graph;
  for (std::uint64_t i = 0; i < 5; ++i) add_step(graph, parameter(8, i), full({}, 1.0, f32));
  EXPECT_EQ(count_ops(plan_program(graph)).at("sgd"), 5);
  EXPECT_EQ(groups_of(grouped_on_cpu(graph)), std::vector<std::size_t>{5});
}

TEST(GroupSmall, OfOneKindAndSmall) {
  Graph graph;
  for (std::uint64_t i = 0; i < 3; ++i) add_step(graph, parameter(8, i), full({}, 1.0, f32));
  add_step(graph, parameter(1 << 15, 9), full({}, 1.0, f32));  // 128 KiB
  for (std::uint64_t i = 0; i < 2; ++i) {
    const Variable value(zeros({4}, f32));
    const SgdResult r = sgd_update(value, parameter(4, i + 20).gradient, {}, full({}, 0.1, f64),
                                   full({}, 1.0, f32), {.weight_decay = 0.5});
    graph.updates.push_back({value, r.parameter});
  }
  EXPECT_EQ(groups_of(grouped_on_cpu(graph)), (std::vector<std::size_t>{3, 2}));
}

TEST(GroupSmall, NoMoreThanAKernelTakesNorThanMayWait) {
  Graph many, large;
  for (std::uint64_t i = 0; i < 300; ++i) add_step(many, parameter(8, i), full({}, 1.0, f32));
  EXPECT_EQ(groups_of(grouped_on_cpu(many)), (std::vector<std::size_t>{128, 128, 44}));
  // Sixteen gradients of 64 KiB are 1 MiB; with the scale, which is made too, fifteen are less.
  for (std::uint64_t i = 0; i < 30; ++i) add_step(large, parameter(1 << 14, i), full({}, 1.0, f32));
  for (const std::size_t calls : groups_of(grouped_on_cpu(large))) EXPECT_LE(calls, 16u);
}

// A view keeps its whole source live.
TEST(GroupSmall, ViewsOfLargeTensorsStayAlone) {
  Graph graph;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Parameter p = parameter(8, i);
    p.gradient = slice(random_normal({1 << 15}, 0.0, 1.0, f32, device::cpu, RandomKey{i}), 0, 0, 8);
    add_step(graph, p, full({}, 1.0, f32));
  }
  EXPECT_TRUE(groups_of(grouped_on_cpu(graph)).empty());
}

// An update that reads another's variable must run before that one's update; both run alone.
TEST(GroupSmall, UpdatesThatReadOthersVariables) {
  Parameter a = parameter(8, 1), b = parameter(8, 2), c = parameter(8, 3), d = parameter(8, 4);
  b.gradient = a.value;
  Graph graph;
  for (const Parameter& p : {a, b, c, d}) add_step(graph, p, full({}, 1.0, f32));
  const Graph grouped = grouped_on_cpu(graph);
  EXPECT_EQ(groups_of(grouped), std::vector<std::size_t>{3});  // a, c and d
  check_plan(make_plan(grouped));
}

// If one norm depends on another, each gets its own group, so that no call waits for itself.
TEST(GroupSmall, SumsThatDependOnOneAnother) {
  // All have other readers, so that the sums do not evaluate them.
  std::vector<Tensor> first, outputs;
  for (std::uint64_t i = 0; i < 6; ++i) first.push_back(eval(parameter(8, i).gradient));
  const Tensor norm = optim::global_norm(first);
  for (const Tensor& x : first) outputs.push_back(x * norm);
  outputs.insert(outputs.begin(), optim::global_norm(outputs));
  const Graph graph{.inputs = {}, .outputs = outputs, .updates = {}};
  const Graph grouped = grouped_on_cpu(graph);
  EXPECT_EQ(groups_of(grouped), (std::vector<std::size_t>{6, 6}));
  Program separate(graph), together(graph, make_plan(grouped), {});
  separate.run(), together.run();
  EXPECT_EQ(bytes_of(separate.output(0)), bytes_of(together.output(0)));
}

// Sums with different readers: grouped, one reader would wait for the other's inputs.
TEST(GroupSmall, SumsWithReadersOfTheirOwnStayAlone) {
  Graph graph;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Tensor x = parameter(8, i).gradient;
    graph.outputs.push_back(x * sum_squares(x));
  }
  EXPECT_TRUE(groups_of(grouped_on_cpu(graph)).empty());
}

// --- Memory

// A deep perceptron whose biases are small and whose weights are not.
struct Perceptron {
  std::vector<nn::NamedVariable> parameters;
  optim::StateStore store;
  Graph graph;

  explicit Perceptron(Device device) {
    const Tensor x = input({{64, 256}, f32}, "x", device), rate = input({{}, f64}, "rate", device),
                 step = input({{}, f64}, "step", device);
    Tensor h = x;
    std::vector<Tensor> targets;
    for (int i = 0; i < 12; ++i) {
      const std::string layer = "h." + std::to_string(i);
      const Variable weight(zeros({256, 256}, f32, device)), bias(zeros({256}, f32, device));
      parameters.push_back({layer + ".weight", weight});
      parameters.push_back({layer + ".bias", bias});
      targets.insert(targets.end(), {weight, bias});
      h = tanh(matmul(h, weight) + bias);
    }
    const std::vector<Tensor> gradients = grad(sum(square(h)), targets);
    for (const Tensor& g : gradients) g.node()->set_category(Category::gradients);
    graph = {
        .inputs = {x, rate, step},
        .outputs = {},
        .updates =
            optim::Optimizer(optim::AdamW{}).updates(parameters, gradients, rate, step, {}, store)};
  }
};

TEST(GroupSmall, ABudgetThatCanBeKeptIsKept) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  const Perceptron perceptron(device::cuda(0));
  CompileOptions separate, grouped;
  separate.passes = passes_without(all_pass_names(), {"group_small"});
  const Bytes least = least_budget(perceptron.graph, separate);
  EXPECT_EQ(least_budget(perceptron.graph, grouped), least);
  grouped.plan.budget = least;
  EXPECT_LE(plan_program(perceptron.graph, grouped).peak, least);
  grouped.plan.budget = least - 4096_B;
  EXPECT_THROW(plan_program(perceptron.graph, grouped), BudgetError);
  grouped.plan.budget = least + 1_MiB;
  const Plan plan = plan_program(perceptron.graph, grouped);
  check_plan(plan);
  EXPECT_EQ(count_ops(plan)["adam_group"], 1);
}

TEST(GroupSmall, GroupsAreNamedForWhatTheirCallsShare) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  const Perceptron perceptron(device::cuda(0));
  int groups = 0;
  for (const Instruction& i : plan_program(perceptron.graph).instructions) {
    if (i.op->name() != "adam_group") continue;
    EXPECT_EQ(i.path, "h");
    ++groups;
  }
  EXPECT_EQ(groups, 1);
}

}  // namespace
}  // namespace ebb::test
