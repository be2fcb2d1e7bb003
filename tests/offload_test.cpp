// Plans that span several tiers of memory: the same bits within any budget of the device, and in
// every tier the bytes that were planned.
#include <gtest/gtest.h>

#include <filesystem>

#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/train/train_step.h"
#include "ops/transfer/transfer.h"
#include "plan/check.h"
#include "support/allocation_count.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/sanitizers.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

constexpr int steps = 20;

// A device and its second tier.
struct Where {
  Device device;
  Tier tier;
};
const Where cpu{device::cpu, Tier::disk}, gpu{device::cuda(0), Tier::host};

CompileOptions in_tiers(Tier tier, std::optional<Bytes> budget) {
  CompileOptions compile;
  compile.plan.budget = budget;
  compile.plan.effort = Effort::quick;
  compile.plan.offload.budgets[tier] = 1_GiB;
  compile.plan.offload.smallest = 4_KiB;
  compile.offload_folder = std::filesystem::temp_directory_path();
  return compile;
}

workloads::Options workload(const std::string& name, Device device) {
  workloads::Options options = small_workload(name);
  options.device = device;
  return options;
}

struct Training {
  std::vector<double> losses;
  Plan plan;
};

Training train(const std::string& name, const Where& where, const CompileOptions& compile) {
  const auto task = workloads::make_workload(workload(name, where.device));
  TrainOptions options;
  options.compile = compile;
  TrainStep step(
      task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, options);
  std::vector<Batch> batches;
  {
    data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
    for (int i = 0; i < steps; ++i) batches.push_back(loader.next());
  }  // its thread must not allocate while allocations are counted
  Training run;
  const std::vector<TensorType> types = batches[0].types();
  run.plan = step.plan(types);
  run.losses.reserve(steps);
  run.losses.push_back(step(batches[0]).loss);
  const std::int64_t allocations = allocation_count();
  for (int i = 1; i < steps; ++i)
    run.losses.push_back(step(batches[static_cast<std::size_t>(i)]).loss);
  // oneDNN allocates for every convolution, and CUDA when a step is captured.
  if (name != "resnet" && where.device == device::cpu) {
    EXPECT_EQ(allocation_count() - allocations, 0) << "after the first step";
  }
  EXPECT_EQ(step.arena()->size(), run.plan.arena());
  EXPECT_LE(step.resident(types), run.plan.peak);
  EXPECT_EQ(step.held(types)[where.tier], run.plan.held[where.tier]);
  const Program::FileTraffic traffic = step.file_traffic(types);
  EXPECT_GE(traffic.read, steps * run.plan.moved[Tier::disk].fetched);
  EXPECT_GE(traffic.written, steps * run.plan.moved[Tier::disk].stored);
  return run;
}

void keeps_budgets_and_bits(const std::string& name, const Where& where, int budgets) {
  const Training kept = train(name, where, {});
  EXPECT_EQ(kept.plan.held[where.tier], 0_B);
  const auto task = workloads::make_workload(workload(name, where.device));
  TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
  const data::Loader loader(task->train, {.batch = task->batch_size});
  const Graph graph = step.trace(loader.types().front());
  CompileOptions alone;
  alone.plan.effort = Effort::quick;
  const Bytes in_memory = least_budget(graph, alone);
  const Bytes least = least_budget(graph, in_tiers(where.tier, {}));
  EXPECT_LT(least, in_memory);
  for (int i = 0; i < budgets; ++i) {
    const Bytes budget{least.count + (kept.plan.peak.count - least.count) * i / budgets};
    SCOPED_TRACE(to_string(budget));
    const Training run = train(name, where, in_tiers(where.tier, budget));
    EXPECT_LE(run.plan.peak, budget);
    EXPECT_EQ(run.losses, kept.losses);
    if (budget < in_memory) {
      EXPECT_GT(run.plan.moved[where.tier].fetched, 0_B);
      EXPECT_GT(run.plan.held[where.tier], 0_B);
    }
    test::check_plan(run.plan);
    ebb::check_plan(run.plan);
  }
}

class Offload : public testing::TestWithParam<std::string> {};

TEST_P(Offload, KeepsBudgetsAndBits) { keeps_budgets_and_bits(GetParam(), cpu, sanitized ? 2 : 5); }

class CudaOffload : public testing::TestWithParam<std::string> {};

TEST_P(CudaOffload, KeepsBudgetsAndBits) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  keeps_budgets_and_bits(GetParam(), gpu, 5);
}

INSTANTIATE_TEST_SUITE_P(Workloads, Offload, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });
INSTANTIATE_TEST_SUITE_P(Workloads, CudaOffload, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ebb::test
