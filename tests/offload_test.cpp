// Plans that span several tiers of memory: the same bits within any budget of the device, and in
// every tier the planned number of bytes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <limits>
#include <random>

#include "core/tier_block.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/train/train_step.h"
#include "ops/transfer/transfer.h"
#include "plan/arena_layout.h"
#include "plan/check.h"
#include "plan/offload/candidates.h"
#include "plan/offload/start_early.h"
#include "support/allocation_count.h"
#include "support/other_device.h"
#include "support/plan_check.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/small_workload.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using namespace planning;

constexpr int steps = sanitized ? 3 : 20;

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

// Main memory is the CPU's own tier.
TEST(Offload, ATierThatTheDeviceDoesNotHaveIsRefused) {
  const Variable w(full({64, 64}, 1.0, f32));
  const Graph graph{{}, {}, {{w, w * 0.5}}};
  EXPECT_THROW(plan_program(graph, in_tiers(Tier::host, 1_MiB)), ValueError);
  EXPECT_NO_THROW(plan_program(graph, in_tiers(Tier::disk, 1_MiB)));
}

class OffloadOf : public testing::TestWithParam<std::string> {};

TEST_P(OffloadOf, KeepsBudgetsAndBits) {
  if (sanitized && GetParam() != "gpt2" && GetParam() != "mlp")
    GTEST_SKIP() << "planning takes too long under a sanitizer";
  keeps_budgets_and_bits(GetParam(), cpu, sanitized ? 2 : 5);
}

class CudaOffload : public testing::TestWithParam<std::string> {};

TEST_P(CudaOffload, KeepsBudgetsAndBits) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  keeps_budgets_and_bits(GetParam(), gpu, 5);
}

// Moves any subset of the movable tensors, in any order. Every other graph is planned with the
// smallest peak, so that values are also recomputed and fetched more than once.
TEST(Offload, RandomGraphsInRandomTiers) {
  const std::uint64_t graphs = sanitized ? 60 : 1000;
  std::int64_t moved = 0;
  for (std::uint64_t seed = 0; seed < graphs && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("graph " + std::to_string(seed));
    const DType dtype = std::array{f32, f64, bf16}[seed % 3];
    const int nodes = 4 + static_cast<int>(seed % 7) * 4;
    RandomGraph resident = random_graph(seed, nodes, dtype);
    CompileOptions options;
    options.seed = 5;
    options.plan.effort = Effort::quick;
    Program kept(resident.graph, options);

    RandomGraph random = random_graph(seed, nodes, dtype);  // with variables of its own
    options.plan.offload.budgets[Tier::disk] = 1_GiB;
    options.plan.offload.smallest = 1_B;
    options.plan.rates.links[Tier::disk] = {1e15, 1e15};  // so that short gaps are long enough
    options.offload_folder = std::filesystem::temp_directory_path();
    const PassList passes = all_pass_names();
    const Planner planner(run_passes(random.graph, passes), options.plan);
    std::vector<Candidate> some = candidates(planner);
    std::mt19937_64 draw(seed);
    std::shuffle(some.begin(), some.end(), draw);
    some.resize(draw() % (some.size() + 1));
    const OrderedGraph made =
        with_transfers(planner.graph(), planner.order(), place(some, 1_GiB, planner));
    Planner with_copies(made.graph, made.order, options.plan);
    Plan plan = seed % 2 == 0 ? std::move(*with_copies.run().plan) : with_copies.least();
    plan.passes = passes;

    test::check_plan(plan);
    ebb::check_plan(plan);
    EXPECT_FALSE(differs(plan, planner.graph()));
    Program program(random.graph, plan, options);
    EXPECT_EQ(program.held()[Tier::disk], plan.held[Tier::disk]);
    EXPECT_EQ(two_steps(random, program), two_steps(resident, kept));
    moved += plan.moved[Tier::disk].fetched.count;
  }
  EXPECT_GT(moved, 0);
}

// Copies in one lane run in their order, so one that is needed late must not hold up one that is
// needed soon; nor may it take the memory that this one needs to start early.
TEST(Offload, FetchesKeepTheOrderOfTheirReaders) {
  const Tensor x = input({{8, 64}, f32}, "x");
  std::vector<Variable> weights;
  std::vector<Tensor> parameters;
  Tensor h = x;
  for (int i = 0; i < 8; ++i) {
    weights.emplace_back(full({64, 64}, 0.1, f32));
    parameters.push_back(weights.back());
    h = tanh(matmul(h, weights.back()));
  }
  const std::vector<Tensor> gradients = grad(mean(square(h)), parameters);
  Graph graph{{x}, {}, {}};
  for (std::size_t i = 0; i < weights.size(); ++i)
    graph.updates.push_back({weights[i], parameters[i] - gradients[i] * 0.1});
  PlanOptions options = in_tiers(Tier::disk, {}).plan;
  options.rates.links[Tier::disk] = {1e6, 1e6};  // every instruction waits for copies
  const Planner planner(run_passes(graph, all_pass_names()), options);
  const OrderedGraph made =
      with_transfers(planner.graph(), planner.order(), place(candidates(planner), 1_GiB, planner));
  const Planner with_copies(made.graph, made.order, options);
  const Plan& plan = with_copies.base().plan;

  std::vector<InstructionId> readers(plan.instructions.size());  // the first of each result
  for (const InstructionId i : plan.instructions.ids())
    for (const Operand& input : plan.instructions[i].inputs)
      if (const InstructionId maker = plan.values[input.value].maker)
        if (InstructionId& first = readers[maker.index()]; !first) first = i;
  const int count = static_cast<int>(plan.instructions.size());
  const Bytes peak = live_peak(plan.buffers.rows(), count).bytes;
  int moved = 0, at = 0;
  InstructionId last_reader(0);
  for (const InstructionId i : early_order(with_copies.base(), peak + 48_KiB)) {
    moved += at++ < i.number();
    if (plan.instructions[i].op != &fetch_op()) continue;
    EXPECT_GE(readers[i.index()], last_reader) << "fetch " << i.number();
    last_reader = readers[i.index()];
  }
  EXPECT_GT(moved, 4);
}

// A larger budget hardly ever gives a slower plan: the search is a heuristic, which can miss the
// plan of a smaller budget by a few percent. Other tiers never give a slower plan than
// recomputation alone. Rates are given, so that plans do not depend on the state of this machine's
// disk. Links are slow, because these models are small: copies must cost time for the search to
// matter.
void larger_budgets_are_not_slower(const std::string& name, const Where& where, Rates rates) {
  const auto task = workloads::make_workload(workload(name, where.device));
  TrainStep step(task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); });
  const data::Loader loader(task->train, {.batch = task->batch_size});
  const Graph graph = step.trace(loader.types().front());
  CompileOptions options = in_tiers(where.tier, {});
  options.plan.rates = std::move(rates);
  CompileOptions alone = options;
  alone.plan.offload.budgets = {};
  const Bytes least = least_budget(graph, options), in_memory = least_budget(graph, alone);
  double before = std::numeric_limits<double>::infinity();
  for (const double times : {1.0, 1.1, 1.25, 1.5, 2.0, 3.0}) {
    const Bytes budget{static_cast<std::int64_t>(times * static_cast<double>(least.count))};
    SCOPED_TRACE(to_string(budget));
    options.plan.budget = alone.plan.budget = budget;
    const Plan plan = plan_program(graph, options);
    EXPECT_LE(plan.peak, budget);
    EXPECT_LE(plan.predicted_ms, 1.1 * before);  // 1.05 for bert, 1 for the others
    if (budget >= in_memory) {
      EXPECT_LE(plan.predicted_ms, plan_program(graph, alone).predicted_ms);
    }
    before = std::min(before, plan.predicted_ms);
  }
}

TEST_P(OffloadOf, LargerBudgetsAreNotSlower) {
  if (sanitized) GTEST_SKIP() << "planning takes too long under a sanitizer";
  Rates rates;
  rates.links[Tier::disk] = {5e8, 5e8};
  larger_budgets_are_not_slower(GetParam(), cpu, rates);
}

// A disk failure is one error that names the folder. If no variable had been written yet, the
// weights are those after the last complete step.
class FaultyDisk : public testing::Test {
 protected:
  // A step that updates a large variable twice, faster than it can be stored, with everything on
  // the disk.
  FaultyDisk() : w_(full({1024, 1024}, 1.0, f32)) {
    options_ = in_tiers(Tier::disk, {});
    options_.offload_folder = folder_.path();
    options_.plan.offload.homes[w_.node()->id()] = Tier::disk;
  }
  Graph graph() const { return {{}, {}, {{w_, w_ * 0.5}}}; }
  std::vector<float> value() const {
    std::vector<float> all(1024 * 1024);
    w_.node()->storage()->read(std::as_writable_bytes(std::span(all)));
    return all;
  }

  const TemporaryFolder folder_;
  Variable w_;
  CompileOptions options_;
};

TEST_F(FaultyDisk, AFileThatWasCutIsNamedAndNothingIsWritten) {
  Program program(graph(), options_);
  program.run();
  OffloadFile* const file = w_.node()->storage()->part().block->file();
  ASSERT_NE(file, nullptr);
  const Bytes size = file->size();
  ASSERT_EQ(ftruncate(file->descriptor(), 4096), 0);
  try {
    program.run();
    FAIL() << "the file is too short";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find("was cut"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(folder_.path().string()), std::string::npos);
  }
  EXPECT_TRUE(program.intact());
  // The next step is not affected by the error of this one.
  ASSERT_EQ(ftruncate(file->descriptor(), size.count), 0);
  EXPECT_NO_THROW(program.run());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// A store that has begun may have changed the variable, and this is reported.
TEST_F(FaultyDisk, AStepWhoseStoreBeganIsNotIntact) {
  const Variable index(full({2}, 5.0, i64)), table(full({3, 4}, 1.0, f32));
  // The lookup that fails runs after the update of w, which may have been stored by then.
  const Tensor halved = w_ * 0.5;
  const Tensor row = embedding(table, index);
  const Graph both{{}, {sum(row)}, {{w_, halved}}};
  Program program(both, options_);
  EXPECT_ANY_THROW(program.run());
  const std::vector<float> now = value();
  const bool as_before = now.front() == 1.0f && now.back() == 1.0f;
  EXPECT_TRUE(as_before || !program.intact());
}

TEST_F(FaultyDisk, AFullDiskIsToldBeforeAnythingRuns) {
  const Variable huge(full({std::int64_t{1} << 40}, 1.0, f32));  // 4 TiB
  options_.plan.offload.budgets[Tier::disk] = Bytes{std::int64_t{1} << 43};
  options_.plan.offload.homes[huge.node()->id()] = Tier::disk;
  const Graph graph{{}, {}, {{huge, huge * 0.5}}};
  try {
    Program program(graph, options_);
    FAIL() << "no disk of this machine holds 4 TiB";
  } catch (const FileError& error) {
    EXPECT_NE(std::string(error.what()).find(folder_.path().string()), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// A file without a name disappears with the process that made it, however the process ends.
TEST_F(FaultyDisk, AKilledRunLeavesNoFile) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const OffloadFile file(folder_.path(), 1_MiB);
    kill(getpid(), SIGKILL);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

INSTANTIATE_TEST_SUITE_P(Workloads, OffloadOf, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });
INSTANTIATE_TEST_SUITE_P(Workloads, CudaOffload, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ebb::test
