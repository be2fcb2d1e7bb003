// The promise, for every workload: a budget is kept, the arena takes exactly the planned pages,
// nothing allocates after the first step, and no loss changes by a bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/train/train_step.h"
#include "support/allocation_count.h"
#include "support/plan_check.h"
#include "support/sanitizers.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

constexpr int steps = 20;

struct Training {
  std::vector<double> losses;
  Plan plan;
};

Training train(const std::string& name, std::optional<Bytes> budget) {
  const auto task = workloads::make_workload(small_workload(name));
  CompileOptions compile;
  compile.plan.budget = budget;
  TrainOptions options;
  options.compile = compile;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
  Training run;
  std::vector<Batch> batches;
  {
    data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
    for (int i = 0; i < steps; ++i) batches.push_back(loader.next());
  }  // its thread must not allocate while allocations are counted
  run.plan = step.plan(batches[0].types());
  run.losses.reserve(steps);
  run.losses.push_back(step(batches[0]).loss);
  const std::int64_t allocations = allocation_count(), live = live_allocations();
  for (int i = 1; i < steps; ++i)
    run.losses.push_back(step(batches[static_cast<std::size_t>(i)]).loss);
  // oneDNN makes a map of the arguments for every convolution and frees it when the call ends.
  if (name != "resnet") {
    EXPECT_EQ(allocation_count() - allocations, 0) << "after the first step";
  }
  EXPECT_EQ(live_allocations(), live);
  EXPECT_EQ(step.arena()->resident(), run.plan.arena());
  EXPECT_EQ(step.arena()->size(), run.plan.arena());
  EXPECT_LE(step.resident(batches[0].types()), run.plan.peak);
  return run;
}

class Budget : public testing::TestWithParam<std::string> {};

TEST_P(Budget, IsKeptAndChangesNothing) {
  const Training kept = train(GetParam(), {});
  EXPECT_LE(kept.plan.fragmentation(), 1.01);
  const auto task = workloads::make_workload(small_workload(GetParam()));
  TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
  const data::Loader loader(task->train, {.batch = task->batch_size});
  const Bytes least = least_budget(step.trace(loader.types().front()), CompileOptions{});
  ASSERT_LE(least, kept.plan.peak);
  const int budgets = sanitized ? 2 : 6;
  for (int i = 0; i < budgets; ++i) {
    const Bytes budget{least.count + (kept.plan.peak.count - least.count) * i / (budgets - 1)};
    SCOPED_TRACE(to_string(budget));
    const Training run = train(GetParam(), budget);
    EXPECT_LE(run.plan.peak, budget);
    EXPECT_LE(run.plan.fragmentation(), 1.01);
    EXPECT_EQ(run.losses, kept.losses);
    check_plan(run.plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Workloads, Budget, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });

// The reported smallest budget is smaller than any budget that can be kept. In residual blocks of
// several widths, small steps down end early.
TEST(LeastBudget, NoneBelowIsKept) {
  workloads::Options sizes;
  sizes.name = "resnet";
  sizes.depth = 50, sizes.batch = 256, sizes.dtype = bf16;
  const auto task = workloads::make_workload(sizes);
  TrainOptions train;
  train.precision = Precision::pure_bf16;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, train);
  const data::Loader loader(task->train, {.batch = task->batch_size});
  const Graph graph = step.trace(loader.types().front());
  CompileOptions options;
  const Bytes least = least_budget(graph, options);
  options.plan.budget = least;
  EXPECT_LE(plan_program(graph, options).peak, least);
  options.plan.effort = sanitized ? Effort::quick : Effort::thorough;
  for (const double share : {0.97, 0.9}) {
    options.plan.budget =
        Bytes{static_cast<std::int64_t>(share * static_cast<double>(least.count))};
    EXPECT_THROW(plan_program(graph, options), BudgetError) << share;
  }
}

// Besides the smallest budget, the error names one whose plan is not much slower than keeping all.
TEST(LeastBudget, AFastOneIsNamedBesideIt) {
  for (const char* name : {"gpt2", "mlp"}) {
    SCOPED_TRACE(name);
    const auto task = workloads::make_workload(small_workload(name));
    TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
    const Graph graph = step.trace(task->train->types(task->batch_size));
    CompileOptions options;
    options.plan.effort = Effort::quick;
    const LeastBudgets budgets = least_budgets(graph, options);
    EXPECT_EQ(budgets.least.bytes, least_budget(graph, options));
    EXPECT_GE(budgets.fast.bytes, budgets.least.bytes);
    EXPECT_LE(budgets.fast.overhead, fast_overhead);
    for (const KeptBudget& kept : {budgets.least, budgets.fast}) {
      options.plan.budget = kept.bytes;
      const Plan plan = plan_program(graph, options);
      EXPECT_LE(plan.peak, kept.bytes);
      EXPECT_LE(plan.overhead(), kept.overhead + 1e-9);
    }
    options.plan.budget = budgets.least.bytes - 64_KiB;
    try {
      plan_program(graph, options);
      FAIL() << "a budget below the least was kept";
    } catch (const BudgetError& error) {
      EXPECT_EQ(error.kept.least.bytes, budgets.least.bytes);
      EXPECT_LE(error.kept.fast.overhead, fast_overhead);
      EXPECT_NE(std::string(error.what()).find("× the time of keeping all"), std::string::npos);
      if (error.kept.fast.bytes > error.kept.least.bytes) {
        EXPECT_NE(std::string(error.what()).find("is enough for"), std::string::npos);
      }
    }
  }
}

// A strategy that the user names has only one plan, whose peak is its smallest budget.
TEST(LeastBudget, IsThatOfTheStrategyAskedFor) {
  const auto task = workloads::make_workload(small_workload("gpt2"));
  TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
  const Graph graph = step.trace(task->train->types(task->batch_size));
  for (const Recompute::Mode mode : {Recompute::Mode::blocks, Recompute::Mode::none}) {
    CompileOptions options;
    options.plan.recompute = {mode};
    const Bytes peak = plan_program(graph, options).peak;
    EXPECT_EQ(least_budget(graph, options), peak);
    options.plan.budget = peak;
    EXPECT_EQ(plan_program(graph, options).peak, peak);
    options.plan.budget = peak - 4096_B;
    const PlanResult none = try_plan_program(graph, options);
    ASSERT_FALSE(none.plan);
    EXPECT_EQ(none.least->bytes, peak);
  }
}

}  // namespace
}  // namespace ebb::test
