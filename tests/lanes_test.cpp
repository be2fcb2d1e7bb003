// Two lanes of a plan: however a device interleaves them, the results do not change.
#include "plan/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ebb/program.h"
#include "plan/arena_layout.h"
#include "support/plan_check.h"
#include "support/random_graph.h"

namespace ebb::test {
namespace {

using namespace planning;

// A plan of the CPU laid out as for a device with two lanes.
Plan in_two_lanes(Plan plan) {
  const int count = static_cast<int>(plan.instructions.size());
  mark_beside(plan);
  stretch_lives(plan, live_peak(plan.buffers.rows(), count).bytes);
  plan.spaces[SpaceId(0)].size = Storage::reservation(plan.device, lay_out(plan.buffers.rows()));
  plan.peak = plan.arena() + plan.persistent;
  order_lanes(plan);
  return plan;
}

int count_beside(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.instructions.begin(), plan.instructions.end(),
                                        [&](const Instruction& i) { return plan.runs_beside(i); }));
}

// Runs the instructions one after another, in an order that both lanes and their waits allow:
// `choose` says which lane continues if both could.
template <class Choose>
Plan in_another_order(Plan plan, const Choose& choose) {
  std::vector<InstructionId> lanes[2], order;
  for (const InstructionId i : plan.instructions.ids())
    lanes[plan.runs_beside(plan.instructions[i])].push_back(i);
  std::size_t next[2] = {0, 0};
  std::vector<bool> done(plan.instructions.size());
  const auto ready = [&](int lane) {
    if (next[lane] == lanes[lane].size()) return false;
    const auto& waits = plan.instructions[lanes[lane][next[lane]]].waits;
    return std::all_of(waits.begin(), waits.end(),
                       [&](InstructionId other) { return done[other.index()]; });
  };
  while (order.size() < plan.instructions.size()) {
    EXPECT_TRUE(ready(0) || ready(1)) << "both lanes wait";
    const int lane = ready(0) && ready(1) ? choose() : (ready(1) ? 1 : 0);
    order.push_back(lanes[lane][next[lane]++]);
    done[order.back().index()] = true;
  }
  Table<Instruction> moved;
  for (const InstructionId i : order) moved.add(plan.instructions[i]);
  plan.instructions = std::move(moved);
  return plan;
}

TEST(Lanes, AnyPaceGivesTheSameBits) {
  int aside = 0;
  std::mt19937 random_lane(3);
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    RandomGraph random = random_graph(seed, 60, f32);
    random.reset_variables();
    const CompileOptions options{.plan = {}, .seed = 5};
    Program plain(random.graph, options);
    const Image expected = two_steps(random, plain);
    const Plan plan = in_two_lanes(plain.plan());
    check_layout(plan);
    aside += count_beside(plan);
    const auto expect_same = [&](const auto& choose, const char* what) {
      random.reset_variables();
      Program program(random.graph, in_another_order(plan, choose), options);
      EXPECT_EQ(two_steps(random, program), expected) << what;
    };
    expect_same([] { return 0; }, "aside as late as it may be");
    expect_same([] { return 1; }, "aside as early as it may be");
    expect_same([&] { return static_cast<int>(random_lane() % 2); }, "by chance");
  }
  EXPECT_GT(aside, 150);
}

// A step of gradient descent on a perceptron: the sums for its biases, and all updates.
TEST(Lanes, UpdatesAndWhatTheyAloneReadRunAside) {
  const Tensor x = input({{64, 32}, f32}, "x");
  std::vector<Variable> weights, biases;
  Tensor h = x;
  for (int i = 0; i < 3; ++i) {
    weights.emplace_back(random_normal({32, 32}, 0.0, 0.2, f32));
    biases.emplace_back(zeros({32}, f32));
    h = tanh(matmul(h, weights.back()) + biases.back());
  }
  std::vector<Tensor> parameters;
  for (const auto* list : {&weights, &biases})
    parameters.insert(parameters.end(), list->begin(), list->end());
  const std::vector<Tensor> gradients = grad(sum(square(h)), parameters);
  Graph graph{.inputs = {x}, .outputs = {}, .updates = {}};
  for (std::size_t i = 0; i < 6; ++i)
    graph.updates.push_back(
        {i < 3 ? weights[i] : biases[i - 3], parameters[i] - gradients[i] * 0.1});
  const Plan plan = in_two_lanes(plan_program(graph));
  int updates = 0, sums = 0;
  for (const Instruction& instruction : plan.instructions) {
    const bool writes_variable =
        static_cast<bool>(plan.buffers[instruction.outputs[0].buffer].place.leaf);
    if (instruction.work == Work::product) {
      EXPECT_FALSE(plan.runs_beside(instruction));
      continue;
    }
    if (writes_variable) {
      EXPECT_TRUE(plan.runs_beside(instruction));
      ++updates;
    } else if (plan.runs_beside(instruction)) {
      ++sums;
    }
  }
  EXPECT_EQ(updates, 6);
  EXPECT_GT(sums, 0);
}

}  // namespace
}  // namespace ebb::test
