// `ebb plan`, `ebb fit`, `ebb probe` and budgets on `ebb train`, as a user meets them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/cuda/cuda.h"
#include "support/command_line.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    "--workload gpt2 --layers 3 --width 32 --heads 2 --sequence 32 --vocabulary 61 ";

const char* device_text = R"({"name": "a device that is not here", "memory_bytes": 1e11,
  "bytes_per_second": 4e12, "launch_us": 2.0, "operations_per_second": {
    "elementwise": {"float32": 1e13, "bfloat16": 2e13, "float16": 2e13, "float64": 5e12},
    "product": {"float32": 5e13, "bfloat16": 8e14, "float16": 8e14, "float64": 5e13},
    "attention": {"float32": 2e13, "bfloat16": 4e14, "float16": 4e14, "float64": 1e13},
    "convolution": {"float32": 4e13, "bfloat16": 5e14, "float16": 5e14, "float64": 2e13}}})";

class CommandLinePlan : public testing::Test {
 protected:
  // Plans are made for a described device: nothing is measured, so the numbers repeat.
  std::string device() {
    return "--device " + folder_.write("device.json", device_text).string() + " ";
  }
  Json result_of(const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
    return Json::parse(outcome.output.substr(
        outcome.output.rfind('{', 0) == 0 ? 0 : outcome.output.find("\n{") + 1));
  }
  TemporaryFolder folder_;
};

TEST_F(CommandLinePlan, TellsPeakAndTime) {
  const Json all = result_of("plan " + sizes + device());
  for (const char* key : {"planned_peak_bytes", "peak_by_category", "predicted_step_ms", "overhead",
                          "fragmentation", "recomputed_nodes", "min_feasible_bytes", "plan_ms"})
    EXPECT_TRUE(all.contains(key)) << key;
  EXPECT_EQ(all["device"], "a device that is not here");
  EXPECT_EQ(all["overhead"], 1.0);
  EXPECT_EQ(all["recomputed_nodes"], 0);
  EXPECT_LT(all["min_feasible_bytes"], all["planned_peak_bytes"]);
  const std::int64_t budget = (all["min_feasible_bytes"].get<std::int64_t>() +
                               all["planned_peak_bytes"].get<std::int64_t>()) /
                              2;
  const Json half = result_of("plan " + sizes + device() + "--budget " + std::to_string(budget));
  EXPECT_LE(half["planned_peak_bytes"], budget);
  EXPECT_GT(half["recomputed_nodes"], 0);
  EXPECT_GT(half["overhead"], 1.0);
  for (const char* mode : {"none", "blocks", "sqrt", "segment=2", "selective"})
    EXPECT_LE(result_of("plan " + sizes + device() + "--recompute " + mode)["planned_peak_bytes"],
              all["planned_peak_bytes"]);
}

TEST_F(CommandLinePlan, WritesAProfile) {
  const std::string file = (folder_ / "profile.json").string();
  const Outcome text = run("plan " + sizes + device() + "--recompute blocks --profile " + file);
  EXPECT_EQ(text.code, 0);
  for (const char* part : {"activations", "alive at the peak", "computed again", "h.*.mlp"})
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  const Json profile = Json::parse(std::ifstream(file));
  const std::size_t count = profile["instructions"].size();
  EXPECT_GT(count, 0u);
  EXPECT_EQ(profile["live_bytes"]["activations"].size(), count);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t live = 0;
    for (const auto& [category, bytes] : profile["live_bytes"].items())
      live += bytes[i].get<std::int64_t>();
    most = std::max(most, live);
  }
  const Json plan = result_of("plan " + sizes + device() + "--recompute blocks");
  EXPECT_LE(most, plan["planned_peak_bytes"]);
  EXPECT_GE(static_cast<double>(most), 0.98 * plan["planned_peak_bytes"].get<double>());
}

TEST_F(CommandLinePlan, ABudgetThatCannotBeKept) {
  for (const char* verb : {"plan ", "train --steps 2 "})
    expect_failure(verb + sizes + device() + "--budget 100KiB", 1, "the smallest that can is");
  expect_failure("plan " + sizes + device() + "--budget 100KiB", 1, "--batch 2 to");
  expect_failure("train --steps 1 " + sizes + device() + "--budget 10MiB --whole-process", 1,
                 "fixed cost");
}

// Each form of recomputation has its own least budget: the error names this one, and it can be
// kept.
TEST_F(CommandLinePlan, TheLeastBudgetIsThatOfTheRecomputation) {
  const std::string step = sizes + device() + "--recompute blocks ";
  const Outcome refused = run("plan " + step + "--budget 100KiB");
  EXPECT_EQ(refused.code, 1) << refused.output;
  const std::size_t open = refused.output.find('(');
  ASSERT_NE(open, std::string::npos) << refused.output;
  const std::int64_t least = std::stoll(refused.output.substr(open + 1)), room = 64 * 1024;
  EXPECT_NE(refused.output.find("--recompute auto to "), std::string::npos) << refused.output;
  // Evaluation keeps its results within the same budget.
  const Json kept = result_of("plan " + step + "--budget " + std::to_string(least + room));
  EXPECT_LE(kept["planned_peak_bytes"], kept["budget_bytes"]);
  EXPECT_EQ(result_of("plan " + step + "--budget least")["arena_bytes"], kept["arena_bytes"]);
  expect_failure("plan " + step + "--budget " + std::to_string(least - room), 1, "cannot be kept");
}

TEST_F(CommandLinePlan, WrongOptions) {
  expect_usage_error("plan --budget lots", "--budget");
  expect_usage_error("plan --recompute sometimes", "segment=N");
  expect_usage_error("plan --device nowhere.json", "nowhere.json");
  expect_usage_error("fit --workload lm", "--budget");
  for (const char* option : {"--tf32", "--lanes 1", "--without group_small", "--loss-walks 1"})
    expect_usage_error(std::string("plan --workload lm ") + option,
                       "is for a GPU, but the device is cpu");
  expect_usage_error("plan --workload reweight --tf32", "--tf32 is for a GPU");
  const auto broken = folder_.write("broken.json", R"({"name": "x", "bytes_per_second": -1})");
  expect_failure("plan --device " + broken.string(), 1, "bytes_per_second");
  expect_failure("plan --device " + folder_.write("not.json", "no").string(), 1, "not JSON");
}

// If the build has CUDA kernels, plans for a GPU that is not here are for that GPU's graph, so
// GPU-only options are allowed. Training still uses the CPU instead.
TEST_F(CommandLinePlan, OfAGpuThatIsNotHere) {
  std::string text = device_text;
  text.insert(1, R"("kind": "cuda", )");
  const std::string gpu = "--device " + folder_.write("gpu.json", text).string() + " ";
  if (cuda::built()) {
    EXPECT_GT(result_of("plan " + sizes + gpu + "--lanes 1 --loss-walks 2")["planned_peak_bytes"],
              1000);
    EXPECT_GT(
        result_of("plan --workload resnet --batch 4 --precision bf16 " + gpu)["planned_peak_bytes"],
        1000);
    EXPECT_EQ(run("plan --workload reweight --batch 4 --lanes 1 " + gpu).code, 0);
    const Json all = result_of("plan " + sizes + gpu), cpu = result_of("plan " + sizes + device());
    EXPECT_NE(all["planned_peak_bytes"], cpu["planned_peak_bytes"]);
    EXPECT_EQ(result_of("fit " + sizes + gpu + "--points 2 --most 4 --budget 100MiB")["largest"],
              4);
  } else {
    expect_usage_error("plan " + sizes + gpu + "--lanes 1", "--lanes is for a GPU");
    EXPECT_NE(run("plan " + sizes + gpu).output.find("use the CPU's kernels"), std::string::npos);
  }
  EXPECT_EQ(result_of("train --steps 1 --eval-batches 0 " + sizes + gpu)["steps"], 1);
  expect_usage_error("train --steps 1 " + sizes + gpu + "--lanes 1", "--lanes is for a GPU");
  const auto strange = folder_.write("strange.json", R"({"name": "x", "kind": "abacus"})");
  expect_failure("plan --device " + strange.string(), 1, "must be cpu or cuda, but is \"abacus\"");
}

TEST_F(CommandLinePlan, TrainKeepsABudget) {
  const std::string train = "train --steps 6 --eval-batches 1 " + sizes;
  const Json all = result_of(train), plan = result_of("plan " + sizes + device());
  const std::int64_t budget = plan["min_feasible_bytes"];
  const Json kept = result_of(train + device() + "--budget " + std::to_string(budget));
  EXPECT_EQ(kept["losses"], all["losses"]);
  EXPECT_LE(kept["planned_peak_bytes"], budget);
  EXPECT_EQ(kept["measured_peak_bytes"], kept["planned_peak_bytes"]);
  EXPECT_LT(kept["planned_peak_bytes"], all["planned_peak_bytes"]);
}

TEST_F(CommandLinePlan, TrainKeepsABudgetOfTheWholeProcess) {
  const Json plan = result_of("plan " + sizes + device() + "--budget 4GiB --whole-process");
  // Allows a few MiB for the difference between the fixed costs of two runs. A sanitizer keeps
  // freed memory and records of every block, which only grow.
  const std::int64_t fixed = plan["fixed_bytes"], planned = plan["planned_peak_bytes"],
                     budget = fixed + planned + ((sanitized ? 128 : 4) << 20);
  const Json kept = result_of("train --steps 6 --eval-batches 1 " + sizes + device() +
                              "--whole-process --budget " + std::to_string(budget));
  EXPECT_LE(kept["process_peak_bytes"], budget);
  EXPECT_EQ(kept["planned_peak_bytes"], planned);
  expect_failure("train --steps 6 " + sizes + device() + "--whole-process --budget 1MiB", 1,
                 "its fixed cost alone");
}

// The smallest budget that the error names can be typed as it is: it covers the step, evaluation
// and, with --whole-process, the process.
TEST_F(CommandLinePlan, ABudgetThatIsTooSmallNamesOneThatIsNot) {
  const auto smallest = [&](const std::string& arguments) -> std::int64_t {
    const Outcome refused = run(arguments);
    EXPECT_EQ(refused.code, 1) << refused.output;
    const std::string begin = "the smallest that can is ";
    const std::size_t at = refused.output.find(begin);
    if (at == std::string::npos) return ADD_FAILURE() << refused.output, 0;
    return std::stoll(refused.output.substr(refused.output.find('(', at) + 1));
  };
  for (const std::string& step :
       {"plan " + sizes + device(), "train --steps 2 --eval-batches 1 " + sizes + device()}) {
    const std::int64_t least = smallest(step + "--budget 100KiB");
    EXPECT_LE(result_of(step + "--budget " + std::to_string(least))["planned_peak_bytes"], least);
    // A plan that takes up to 2 % more may be named, as it is faster.
    expect_failure(step + "--budget " + std::to_string(least - least / 50 - 4096), 1,
                   "cannot be kept");
  }
  const std::string levels = "plan --workload reweight --hidden 16 --batch 20 --meta 100 ";
  const std::int64_t least = smallest(levels + "--budget 100KiB");
  EXPECT_LE(result_of(levels + "--budget " + std::to_string(least))["planned_peak_bytes"], least);
  if (sanitized) return;  // whose own memory is most of the process
  const Json free = result_of("plan " + sizes + device() + "--budget 4GiB --whole-process");
  const std::int64_t fixed = free["fixed_bytes"];
  // A little more than the process takes without any step.
  const std::string asked = "--whole-process --budget " + std::to_string(fixed + 100000);
  const std::string profile = "profile --steps 1 --out " + (folder_ / "p").string() + " ";
  for (const std::string& step : {"plan " + sizes + device(), profile + sizes,
                                  "train --steps 2 --eval-batches 1 " + sizes + device()}) {
    const std::int64_t whole = smallest(step + asked);
    EXPECT_GT(whole, fixed) << step;
    const Outcome refused = run(step + asked);
    EXPECT_NE(refused.output.find("for the whole process cannot be kept"), std::string::npos)
        << refused.output;
    // Fixed costs of two runs differ by a few hundred KiB.
    EXPECT_EQ(run(step + "--whole-process --budget " + std::to_string(whole + (1 << 20))).code, 0)
        << step;
  }
}

TEST_F(CommandLinePlan, FitFindsTheLargest) {
  const std::string fit = "fit " + sizes + device() + "--points 3 ";
  const Json batch = result_of(fit + "--budget 3MiB");
  EXPECT_EQ(batch["vary"], "batch");
  EXPECT_LE(batch["planned_peak_bytes"], 3 << 20);
  const std::int64_t largest = batch["largest"];
  const auto at = [&](std::int64_t size) {
    return run("plan " + sizes + device() + "--budget 3MiB --batch " + std::to_string(size)).code;
  };
  EXPECT_EQ(at(largest), 0);
  EXPECT_EQ(at(largest + 1), 1);
  ASSERT_EQ(batch["curve"].size(), 3u);
  EXPECT_GE(batch["curve"][0]["overhead"], batch["curve"][2]["overhead"]);
  EXPECT_LE(batch["curve"][0]["planned_peak_bytes"], batch["curve"][2]["planned_peak_bytes"]);
  const std::string layers =
      "fit --workload gpt2 --width 32 --heads 2 --sequence 32 --vocabulary 61 "
      "--points 3 --budget 3MiB --vary layers ";
  EXPECT_GE(result_of(layers + device())["largest"], 3);
  EXPECT_EQ(result_of(fit + "--budget 1GiB --most 16")["largest"], 16);
  expect_failure(fit + "--budget 10KiB", 1, "the smallest that can is");
}

TEST_F(CommandLinePlan, ProbeDescribesThisMachine) {
  const std::string file = (folder_ / "here.json").string();
  const Json rates = result_of("probe --save " + file);
  EXPECT_GT(rates["bytes_per_second"], 1e8);
  for (const char* type : {"float32", "bfloat16", "float16", "float64"})
    EXPECT_GT(rates["operations_per_second"]["product"][type], 1e8) << type;
  EXPECT_EQ(run("plan " + sizes + "--device " + file).code, 0);
  EXPECT_FALSE(rates.contains("disk"));
}

TEST_F(CommandLinePlan, ProbeMeasuresADisk) {
  const Json disk = result_of("probe --offload-folder " + folder_.path().string())["disk"];
  EXPECT_EQ(disk["folder"], folder_.path().string());
  EXPECT_GT(disk["read_bytes_per_second"], 1e5);
  EXPECT_GT(disk["write_bytes_per_second"], 1e5);
  expect_failure("probe --offload-folder " + (folder_ / "absent").string(), 2, "absent");
}

}  // namespace
}  // namespace ebb::test
