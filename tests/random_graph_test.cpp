// Random graphs through passes, planner and runtime: no rewrite, layout or order of buffers may
// change a bit, and every plan must hold up to a check of its own.
#include "support/random_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

using Tensors = std::vector<Tensor>;

// What the outputs and the variables should be after one step, with nothing written in place: the
// new values are plain outputs.
Image one_step_without_updates(RandomGraph& random) {
  Graph graph = random.graph;
  for (const Update& update : graph.updates) graph.outputs.push_back(update.value);
  graph.updates.clear();
  random.reset_variables();
  Program program(graph,
                  {.plan = {.release = Release::at_end}, .passes = required_passes(), .seed = 5});
  program.run(random.input_values);
  Image image;
  const std::size_t outputs = random.graph.outputs.size();
  for (std::size_t i = 0; i < outputs; ++i)
    image.push_back(bytes_of(program.output(static_cast<int>(i))));
  for (const Variable& variable : random.variables) {
    Tensor value = variable;
    for (std::size_t u = 0; u < random.graph.updates.size(); ++u)
      if (random.graph.updates[u].target == variable)
        value = program.output(static_cast<int>(outputs + u));
    image.push_back(bytes_of(value));
  }
  return image;
}

// A graph's outputs by running every node alone on the results of the others.
std::vector<std::vector<double>> node_by_node(RandomGraph& random) {
  random.reset_variables();
  std::unordered_map<Tensor, Tensor> values;
  for (std::size_t i = 0; i < random.graph.inputs.size(); ++i)
    values[random.graph.inputs[i]] = random.input_values[i];
  for (const auto& node : topological_order(random.graph)) {
    if (values.contains({node, 0})) continue;
    if (node->storage()) {
      values[{node, 0}] = {node, 0};
      continue;
    }
    Tensors inputs;
    for (const Tensor& input : node->inputs()) inputs.push_back(values.at(input));
    const Tensors outputs = inputs.empty()
                                ? Tensors{create(node->op(), node->device(), node->attributes())}
                                : apply(node->op(), inputs, node->attributes());
    const Tensors computed = eval(outputs, 5);
    for (std::size_t o = 0; o < computed.size(); ++o)
      values[{node, static_cast<int>(o)}] = computed[o];
  }
  std::vector<std::vector<double>> results;
  for (const Tensor& output : random.graph.outputs) results.push_back(values_of(values.at(output)));
  return results;
}

void check_graph(std::uint64_t seed, int size, DType dtype) {
  SCOPED_TRACE("graph " + std::to_string(seed) + " in " + std::string(name(dtype)));
  RandomGraph random = random_graph(seed, size, dtype);
  random.reset_variables();
  Program plain(random.graph, {.plan = {}, .seed = 5});
  const Image expected = two_steps(random, plain);
  EXPECT_EQ(two_steps(random, plain), expected) << "a second time";
  for (bool fuse : {true, false}) {
    Program early(random.graph,
                  {.plan = {}, .passes = fuse ? all_pass_names() : required_passes(), .seed = 5});
    Program kept(random.graph, {.plan = {.release = Release::at_end},
                                .passes = fuse ? all_pass_names() : required_passes(),
                                .seed = 5});
    check_plan(early.plan());
    check_plan(kept.plan());
    EXPECT_EQ(two_steps(random, early), expected) << (fuse ? "fused" : "not fused");
    EXPECT_EQ(two_steps(random, kept), expected) << "released at the end";
    EXPECT_LE(early.plan().peak, kept.plan().peak);
  }
  const Image first = one_step_without_updates(random);
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_EQ(first[i], expected[i]) << "result " << i << " without updates in place";
}

TEST(RandomGraph, NoChoiceOfThePlannerChangesABit) {
  for (std::uint64_t seed = 0; seed < (sanitized ? 100 : 300); ++seed) {
    const DType dtype = std::array{f32, f64, bf16}[seed % 3];
    check_graph(seed, 10 + static_cast<int>(seed % 5) * 10, dtype);
    if (HasFailure()) break;  // one graph is enough to look at
  }
}

TEST(RandomGraph, LargeGraphs) {
  for (std::uint64_t seed = 1000; seed < 1003; ++seed) check_graph(seed, 400, f32);
}

// The same on a CUDA device, and against the CPU in float64, where errors stay far below what a
// wrong kernel makes. Without a device the plans are made and checked.
TEST(RandomGraph, OnCuda) {
  if (!built_with_cuda()) GTEST_SKIP() << "this build has no CUDA";
  const Device device = device::cuda(0);
  for (std::uint64_t seed = 3000; seed < 3060; ++seed) {
    const DType dtype = std::array{f64, f32, bf16}[seed % 3];
    SCOPED_TRACE("graph " + std::to_string(seed) + " in " + std::string(name(dtype)));
    RandomGraph random = random_graph(seed, 30, dtype);
    random.reset_variables();
    if (!cuda_present()) {
      const Graph graph = OtherDevice(device, OtherDevice::Constants::inputs)(random.graph);
      check_plan(plan_program(graph));
      continue;
    }
    OtherDevice move(device, OtherDevice::Constants::copied);
    RandomGraph moved{.graph = move(random.graph),
                      .input_values = random.input_values,
                      .variables = {},
                      .initial = random.initial};
    for (const Variable& variable : random.variables) moved.variables.push_back(move(variable));
    Program fused(moved.graph, {.plan = {}, .seed = 5});
    const Image expected = two_steps(moved, fused);
    EXPECT_EQ(two_steps(moved, fused), expected) << "recorded";
    EXPECT_EQ(two_steps(moved, fused), expected) << "replayed";
    Program kept(moved.graph, {.plan = {.release = Release::at_end}, .seed = 5});
    EXPECT_EQ(two_steps(moved, kept), expected) << "released at the end";
    // A product that was joined with what follows it is rounded once less.
    const auto& run = fused.plan().instructions;
    const bool to_the_bit = std::none_of(
        run.begin(), run.end(), [](const Instruction& i) { return i.op->name() == "matmul_then"; });
    if (to_the_bit) {
      Program plain(moved.graph, {.plan = {}, .passes = required_passes(), .seed = 5});
      EXPECT_EQ(two_steps(moved, plain), expected) << "not fused";
    }
    check_plan(fused.plan());
    if (dtype != f64) continue;
    random.reset_variables(), moved.reset_variables();
    Program on_cpu(random.graph, {.plan = {}, .seed = 5});
    on_cpu.run(random.input_values);
    fused.set_step(0);
    fused.run(moved.input_values);
    for (std::size_t i = 0; i < random.graph.outputs.size(); ++i) {
      const auto want = values_of(on_cpu.output(static_cast<int>(i))),
                 got = values_of(fused.output(static_cast<int>(i)));
      for (std::size_t k = 0; k < want.size(); ++k)
        EXPECT_NEAR(got[k], want[k], 1e-9 * std::max(1.0, std::abs(want[k])));
    }
  }
}

// Kernels add in another order when their inputs lie otherwise, so this holds to rounding only.
TEST(RandomGraph, AgreesWithEveryNodeRunAlone) {
  for (std::uint64_t seed = 2000; seed < 2030; ++seed) {
    SCOPED_TRACE("graph " + std::to_string(seed));
    RandomGraph random = random_graph(seed, 30, f64);
    const auto expected = node_by_node(random);
    random.reset_variables();
    Program program(random.graph, {.plan = {}, .seed = 5});
    program.run(random.input_values);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto actual = values_of(program.output(static_cast<int>(i)));
      ASSERT_EQ(actual.size(), expected[i].size());
      for (std::size_t k = 0; k < actual.size(); ++k)
        EXPECT_NEAR(actual[k], expected[i][k], 1e-10 * std::max(1.0, std::abs(expected[i][k])));
    }
  }
}

// --- Updates, one situation each

std::vector<double> list(const Tensor& t) { return values_of(t); }

Variable variable(std::vector<double> values, Shape shape) {
  return Variable(Tensor::from(values, shape));
}
Variable pair_of(double a, double b) { return variable({a, b}, {2}); }

void run_once(const std::vector<Update>& updates, const Tensors& outputs = {}) {
  Program program({.inputs = {}, .outputs = outputs, .updates = updates});
  check_plan(program.plan());
  program.run();
}

TEST(Updates, ASwapSeesOldValues) {
  const Variable a = pair_of(1, 2), b = pair_of(3, 4);
  run_once({{a, b}, {b, a}});
  EXPECT_EQ(list(a), (std::vector<double>{3, 4}));
  EXPECT_EQ(list(b), (std::vector<double>{1, 2}));
  run_once({{a, b * 2.0}, {b, a * 3.0}});
  EXPECT_EQ(list(a), (std::vector<double>{2, 4}));
  EXPECT_EQ(list(b), (std::vector<double>{9, 12}));
}

TEST(Updates, ARotationOfThree) {
  const Variable a = pair_of(1, 1), b = pair_of(2, 2), c = pair_of(3, 3);
  run_once({{a, b}, {b, c}, {c, a}});
  EXPECT_EQ(list(a), (std::vector<double>{2, 2}));
  EXPECT_EQ(list(b), (std::vector<double>{3, 3}));
  EXPECT_EQ(list(c), (std::vector<double>{1, 1}));
}

// The new value is read by later instructions that could write over it, while the old one is still
// needed: it must survive until it can be stored.
TEST(Updates, ANewValueSurvivesItsLastReader) {
  const Variable a = pair_of(1, 2);
  const Tensor next = a * 2.0;
  const Tensor reader = concat({relu(next - 1.0), a}, 0);
  run_once({{a, next}}, {sum(reader)});
  EXPECT_EQ(list(a), (std::vector<double>{2, 4}));
  const Variable b = pair_of(1, 2);
  const Tensor doubled = scatter_add(b, 0, Tensor::from(std::vector<std::int64_t>{0, 1}, {2}), b);
  const Tensor over = scatter_add(doubled, 0, Tensor::from(std::vector<std::int64_t>{0}, {1}),
                                  Tensor::from(std::vector<double>{100.0}, {1}));
  run_once({{b, doubled}}, {sum(concat({over, b}, 0))});
  EXPECT_EQ(list(b), (std::vector<double>{2, 4}));
}

TEST(Updates, TwoVariablesOfOneValue) {
  const Variable a = pair_of(1, 2), b = pair_of(3, 4);
  const Tensor next = a + b;
  run_once({{a, next}, {b, next}}, {next});
  EXPECT_EQ(list(a), (std::vector<double>{4, 6}));
  EXPECT_EQ(list(b), (std::vector<double>{4, 6}));
}

TEST(Updates, ViewsOfTheVariableItself) {
  const Variable a = variable({1, 2, 3, 4}, {2, 2});
  run_once({{a, transpose(a)}});
  EXPECT_EQ(list(a), (std::vector<double>{1, 3, 2, 4}));
  run_once({{a, a + transpose(a)}});
  EXPECT_EQ(list(a), (std::vector<double>{2, 5, 5, 8}));
  run_once({{a, a - mean(a, {0}, Keep::yes)}});
  EXPECT_EQ(list(a), (std::vector<double>{-1.5, -1.5, 1.5, 1.5}));
  run_once({{a, a}});
  EXPECT_EQ(list(a), (std::vector<double>{-1.5, -1.5, 1.5, 1.5}));
}

TEST(Updates, OutputsSeeTheValueFromBefore) {
  const Variable a = pair_of(1, 2);
  Program program({.inputs = {}, .outputs = {a, a * 10.0}, .updates = {{a, a + 1.0}}});
  check_plan(program.plan());
  for (int step = 0; step < 3; ++step) {
    program.run();
    EXPECT_EQ(list(program.output(0)), (std::vector<double>{1.0 + step, 2.0 + step}));
    EXPECT_EQ(list(program.output(1)), (std::vector<double>{10.0 + 10 * step, 20.0 + 10 * step}));
  }
  EXPECT_EQ(list(a), (std::vector<double>{4, 5}));
}

TEST(Updates, MomentumReadsItsNewValue) {
  const Variable w = pair_of(1, 2), m = pair_of(0.5, 0.5);
  const Tensor momentum = m * 0.5 + w;
  run_once({{m, momentum}, {w, w - momentum * 0.5}});
  EXPECT_EQ(list(m), (std::vector<double>{1.25, 2.25}));
  EXPECT_EQ(list(w), (std::vector<double>{0.375, 0.875}));
}

// A plain step of descent needs no bytes besides the variable and the tiles of its kernel.
TEST(Updates, DescentWritesIntoTheVariable) {
  const Variable w = variable(std::vector<double>(1024, 1.0), {1024});
  Program program({.inputs = {}, .outputs = {}, .updates = {{w, w - square(w) * 0.5}}});
  EXPECT_EQ(program.plan().instructions.size(), 1u);
  for (const Buffer& buffer : program.plan().buffers)
    EXPECT_TRUE(!buffer.in_arena() || buffer.category == Category::workspace);
  program.run();
  EXPECT_EQ(list(w), std::vector<double>(1024, 0.5));
}

TEST(Updates, OneVariableHasOneNewValue) {
  const PathScope path("w");
  const Variable a = pair_of(1, 2);
  expect_error(
      [&] {
        Program({.inputs = {}, .outputs = {}, .updates = {{a, a + 1.0}, {a, a * 2.0}}});
      },
      {"[compile]", "\"w\"", "two updates"});
}

}  // namespace
}  // namespace ebb::test
