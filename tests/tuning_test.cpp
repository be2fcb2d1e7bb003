// The known algorithms of libraries as data, and that planning needs nothing else.
#include "ebb/tuning.h"

#include <gtest/gtest.h>

#include "core/cuda/cuda.h"
#include "ebb/ebb.h"
#include "ebb/probe.h"
#include "ebb/storage.h"
#include "plan/request.h"
#include "support/op_check.h"
#include "support/other_device.h"
#include "support/small_workload.h"

namespace ebb::test {
namespace {

const Device gpu = device::cuda(0);

Tuning example() {
  Tuning tuning{.device = "A GPU", .libraries = {}};
  tuning.libraries["products"] = {"12", {{"2x3x4 float32", {3, 1_MiB, 0.25}}, {"none", {-1, {}}}}};
  return tuning;
}

TEST(Tuning, IsReadBack) {
  EXPECT_EQ(parse_tuning(tuning_text(example()), "here"), example());
  EXPECT_EQ(parse_tuning(tuning_text({}), "here"), Tuning{});
}

TEST(Tuning, ErrorsNameWhatIsWrong) {
  const std::string good = tuning_text(example());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const auto& [text, word] : std::initializer_list<std::pair<std::string, const char*>>{
           {"{", "here"},
           {"[]", "\"version\""},
           {with("\"version\": 1", "\"version\": 9"), "version 9"},
           {with("\"A GPU\"", "7"), "\"device\" must be a text"},
           {with("\"12\"", "12"), "\"version\" must be a text"},
           {with("0.25", "-1.0"), "2x3x4 float32"},
           {with("0.25", "\"x\""), "2x3x4 float32"},
           {with("1048576", "-1"), "2x3x4 float32"},
           {with("-1", "-2"), "none"}})
    expect_error([&, &text = text] { parse_tuning(text, "here"); }, {"here", word});
}

TEST(Tuning, AnotherVersionReplacesAllOfALibrary) {
  Tuning tuning = example(), newer = example();
  newer.libraries["products"] = {"12", {{"5x5x5", {0, {}}}}};
  tuning.take(newer);
  EXPECT_EQ(tuning.libraries["products"].calls.size(), 3u);
  newer.libraries["products"].version = "13";
  tuning.take(newer);
  EXPECT_EQ(tuning, newer);
}

TEST(Tuning, UseNotesWhatItReads) {
  const Tuning tuning = example();
  TuningUse use(tuning);
  EXPECT_EQ(use.find("products", "other"), nullptr);
  EXPECT_EQ(use.find("convolutions", "none"), nullptr);
  EXPECT_EQ(use.find("products", "none", "13"), nullptr);
  EXPECT_EQ(use.missing().size(), 3u);
  EXPECT_EQ(use.used().libraries.size(), 0u);
  ASSERT_NE(use.find("products", "none", "12"), nullptr);
  EXPECT_EQ(use.find("products", "none")->choice, -1);
  EXPECT_EQ(use.used().libraries.at("products").calls.size(), 1u);
  use.add("products", "other", "12", [] { return TunedCall{2, 5_B}; });
  EXPECT_EQ(use.find("products", "other", "12")->workspace, 5_B);
}

TEST(Tuning, EveryDeviceHasItsOwn) {
  const std::string cpu = known_tuning(device::cpu)->device;
  EXPECT_FALSE(cpu.empty());
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  EXPECT_NE(known_tuning(gpu)->device, cpu);
}

// A product of a step on a GPU, which need not be here.
Graph product(bool with_bias) {
  const Tensor x = input({{256, 512}, bf16}, "x", gpu), w = input({{512, 384}, bf16}, "w", gpu),
               b = input({{384}, bf16}, "b", gpu);
  const Tensor y = matmul(x, w);
  return {{x, w, b}, {sum(cast(with_bias ? y + b : y, f32))}, {}};
}

const Instruction& product_in(const Plan& plan) {
  for (const Instruction& i : plan.instructions)
    if (i.op->name().starts_with("matmul")) return i;
  throw Error("there is no product");
}

TEST(Tuning, DecidesWorkspacesAndTimes) {
  if (!built_with_cuda()) GTEST_SKIP() << "no CUDA in this build";
  CompileOptions options;
  options.plan.tuning = std::make_shared<const Tuning>();
  const Plan untuned = plan_program(product(false), options);
  EXPECT_GE(untuned.buffers[product_in(untuned).workspace].size, 32_MiB);
  EXPECT_TRUE(untuned.tuning.libraries.empty());

  TuningUse use(*options.plan.tuning);
  kernel_of(untuned, product_in(untuned), Purpose::describe, use);
  ASSERT_EQ(use.missing().size(), 1u);
  const auto& [library, call] = *use.missing().begin();
  Tuning tuning{.device = "A GPU", .libraries = {}};
  tuning.libraries[library] = {"1", {{call, {2, 3_MiB, 7.5}}, {"of another product", {}}}};
  options.plan.tuning = std::make_shared<const Tuning>(tuning);
  const Plan tuned = plan_program(product(false), options);
  EXPECT_EQ(tuned.buffers[product_in(tuned).workspace].size, 3_MiB);
  EXPECT_NEAR(product_in(tuned).predicted_ms, 7.5, 0.1);
  EXPECT_EQ(tuned.tuning.libraries.at(library).calls.size(), 1u);  // what it depends on
  if (cuda_present())                                              // no library has this version
    expect_error([&] { Program(product(false), tuned, {}); }, {library, "version"});
}

// Plans every workload on the CPU and for a GPU. If a GPU is here, its stream records meanwhile:
// any launch would be noticed, and any allocation would be an error.
class PlanningRuns : public testing::TestWithParam<std::string> {};

TEST_P(PlanningRuns, Nothing) {
  for (const Device device : {device::cpu, gpu}) {
    if (device == gpu && !built_with_cuda()) continue;
    workloads::Options options = small_workload(GetParam());
    options.device = device;
    const auto task = workloads::make_workload(options);
    TrainOptions train;
    train.compile.plan.tuning = std::make_shared<const Tuning>();
    if (device == gpu && cuda_present()) train.compile.plan.tuning = known_tuning(gpu);
    TrainStep step(
        task->model(), task->optimizer(), [&](const Batch& b) { return task->loss(b); }, train);
    data::Loader loader(task->train, {.batch = task->batch_size, .seed = 3});
    const Graph graph = step.trace(loader.types().front());
    CompileOptions within = step.options().compile;
    const auto plan_all = [&] {
      within.plan.budget = {};
      const Bytes peak = plan_program(graph, within).peak;
      const Bytes least = least_budget(graph, within);
      within.plan.budget = least + Bytes{(peak - least).count / 2};
      EXPECT_LE(plan_program(graph, within).peak, *within.plan.budget);
    };
    const std::int64_t before = Storage::allocations();
    if (device == gpu && cuda_present()) {
      const Bytes taken = cuda::memory_taken(gpu);
      EXPECT_EQ(cuda::Recording(gpu, plan_all).size(), 0u);
      EXPECT_EQ(cuda::memory_taken(gpu), taken);
    } else {
      plan_all();
    }
    EXPECT_EQ(Storage::allocations(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Workloads, PlanningRuns, testing::ValuesIn(workloads::workload_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace ebb::test
