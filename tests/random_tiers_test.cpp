// Random graphs within random budgets of memory and of a disk, by random rules: no choice changes a
// bit, every tier holds what was planned, and the smallest budget of an error can be kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "ebb/arena.h"
#include "ebb/ebb.h"
#include "ebb/node.h"
#include "plan/check.h"
#include "support/allocation_count.h"
#include "support/plan_check.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"

namespace ebb::test {
namespace {

// What one graph is planned with, the same for the same seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  bool one_in(std::int64_t count) { return below(count) == 0; }
  template <class T, std::size_t count>
  T one_of(const std::array<T, count>& choices) {
    return choices[static_cast<std::size_t>(below(count))];
  }

  // Options without a budget, with a disk and a rule of recomputation.
  CompileOptions options() {
    CompileOptions options;
    options.seed = 5;
    options.offload_folder = std::filesystem::temp_directory_path();
    PlanOptions& plan = options.plan;
    plan.recompute = Recompute::parse(one_of<const char*, 8>(
        {"auto", "auto", "auto", "auto", "greedy", "selective", "segment=3", "none"}));
    plan.effort = one_in(100) ? Effort::thorough : Effort::quick;
    plan.updates = one_in(4) ? UpdateTiming::last : UpdateTiming::early;
    if (one_in(4)) options.passes = required_passes();
    OffloadOptions& offload = plan.offload;
    offload.state = !one_in(4), offload.weights = !one_in(4), offload.activations = !one_in(4);
    offload.smallest = one_of<Bytes, 3>({1_B, 4_KiB, 64_KiB});
    offload.budgets[Tier::disk] = one_in(2) ? 1_GiB : Bytes{1 + below(1 << 20)};
    // A disk whose copies cost nothing, one as fast as most, and a very slow one.
    const double rate = one_of<double, 3>({1e15, 1e9, 1e6});
    plan.rates.links[Tier::disk] = {rate, rate / 2.0};
    return options;
  }

 private:
  std::mt19937_64 random_;
};

// The same graph each time it is called, with variables of its own, of which one is state.
RandomGraph graph_of(std::uint64_t seed) {
  const DType dtype = std::array{f32, f64, bf16}[seed % 3];
  RandomGraph random = random_graph(seed, 4 + static_cast<int>(seed % 7) * 4, dtype, 8);
  random.variables[1].node()->set_category(Category::optimizer);
  return random;
}

// Runs the plan for `options` of a graph and compares what it computes with `expected`.
Plan run_in_tiers(RandomGraph& random, CompileOptions options, const Image& expected) {
  const Plan plan = plan_program(random.graph, options);
  EXPECT_LE(plan.peak, *options.plan.budget);
  EXPECT_LE(plan.held[Tier::disk], options.plan.offload.budgets[Tier::disk]);
  test::check_plan(plan);
  ebb::check_plan(plan);
  EXPECT_FALSE(differs(plan, run_passes(random.graph, plan.passes)));
  options.arena = std::make_shared<Arena>();
  Program program(random.graph, plan, options);
  EXPECT_EQ(two_steps(random, program), expected);
  const std::int64_t allocations = allocation_count();
  program.run(random.input_values);
  EXPECT_EQ(allocation_count() - allocations, 0) << "in the third step";
  EXPECT_EQ(options.arena->size(), plan.arena());
  EXPECT_LE(program.resident(), plan.peak);
  EXPECT_EQ(program.held()[Tier::disk], plan.held[Tier::disk]);
  return plan;
}

TEST(RandomTiers, GraphsKeepRandomBudgetsOfAllTiers) {
  const std::uint64_t graphs = graphs_to_try(sanitized ? 40 : 300);
  std::int64_t stored = 0, fetched = 0, recomputed = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < graphs && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("graph " + std::to_string(seed));
    RandomGraph resident = graph_of(seed), random = graph_of(seed);
    Program kept(resident.graph, {.plan = {}, .seed = 5});
    const Image expected = two_steps(resident, kept);
    Draw draw(seed);
    CompileOptions options = draw.options();
    const Bytes least = least_budget(random.graph, options);
    // In whole pages, as everything is counted: some budgets lie just below what is needed.
    const std::int64_t range = std::max<std::int64_t>(kept.plan().peak.count - least.count, 0);
    options.plan.budget = {least.count - 4096 + draw.below(range + 8192)};
    try {
      const Plan plan = run_in_tiers(random, options, expected);
      stored += plan.moved[Tier::disk].stored.count,
          fetched += plan.moved[Tier::disk].fetched.count;
      recomputed += plan.recomputed_nodes();
    } catch (const BudgetError& error) {
      EXPECT_LT(*options.plan.budget, least) << "a budget above the least was refused";
      EXPECT_EQ(error.least, least);
      options.plan.budget = error.least;
      run_in_tiers(random, options, expected);
      ++refused;
    }
  }
  if (graphs < 40) return;  // too few to do everything
  EXPECT_GT(stored, 0);
  EXPECT_GT(fetched, 0);
  EXPECT_GT(recomputed, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace ebb::test
