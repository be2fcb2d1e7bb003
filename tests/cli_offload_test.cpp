// Offloading to a disk as a user meets it: budgets by tier, the report, files of plans, checkpoints
// and errors.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/command_line.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

Json json_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  const std::size_t begin = outcome.output.rfind("{\"workload\"");
  if (outcome.code != 0 || begin == std::string::npos) return {};
  return Json::parse(outcome.output.substr(begin));
}

class CommandLineOffload : public testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::string task_ = "--workload lm --layers 2 --width 128 --batch 8 ",
                    steps_ = task_ + "--eval-batches 1 ",
                    disk_ = "--disk-budget 1GiB --offload-folder " + folder_.path().string() + " ";
};

TEST_F(CommandLineOffload, LossesAreTheSameAndEveryTierAsPlanned) {
  const Json kept = json_of("train --steps 4 " + steps_);
  const Json moved = json_of("train --steps 4 --budget least " + disk_ + steps_);
  EXPECT_FALSE(kept.contains("tiers"));
  EXPECT_EQ(moved["losses"], kept["losses"]);
  EXPECT_LT(moved["planned_peak_bytes"], kept["planned_peak_bytes"]);
  EXPECT_EQ(moved["planned_peak_bytes"], moved["measured_peak_bytes"]);
  const Json& disk = moved["tiers"]["disk"];
  EXPECT_EQ(disk["planned_bytes"], disk["measured_bytes"]);
  EXPECT_EQ(disk["budget_bytes"], 1 << 30);
  EXPECT_GT(disk["fetched_bytes"], 0);
  EXPECT_GT(disk["stored_bytes"], 0);
  EXPECT_EQ(moved["tiers"]["device"]["planned_bytes"], moved["tiers"]["device"]["measured_bytes"]);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  // What may not move stays.
  const Json state = json_of("plan --budget least --offload state " + disk_ + task_);
  EXPECT_GT(state["tiers"]["disk"]["planned_bytes"], 0);
  EXPECT_LT(state["tiers"]["disk"]["planned_bytes"], disk["planned_bytes"]);
  EXPECT_GT(state["planned_peak_bytes"], moved["planned_peak_bytes"]);
}

TEST_F(CommandLineOffload, PlansAndCheckpointsOfAnyTiers) {
  const std::string plan = (folder_ / "step.plan").string();
  const Json made = json_of("plan --budget least --save " + plan + " " + disk_ + task_);
  const Json kept = json_of("train --steps 4 " + steps_);
  const Json read = json_of("train --steps 4 --plan " + plan + " --offload-folder " +
                            folder_.path().string() + " " + steps_);
  EXPECT_EQ(read["losses"], kept["losses"]);
  EXPECT_EQ(read["tiers"]["disk"]["planned_bytes"], made["tiers"]["disk"]["planned_bytes"]);

  const std::string checkpoint = (folder_ / "run").string();
  ASSERT_EQ(
      run("train --steps 2 --budget least --checkpoint " + checkpoint + " " + disk_ + steps_).code,
      0);
  const std::string copy = (folder_ / "copy").string();
  std::filesystem::copy(checkpoint, copy, std::filesystem::copy_options::recursive);
  const Json last_two = Json::array({kept["losses"][2], kept["losses"][3]});
  EXPECT_EQ(json_of("train --steps 4 --resume " + checkpoint + " " + steps_)["losses"], last_two);
  EXPECT_EQ(json_of("train --steps 4 --budget 30MiB --resume " + copy + " " + steps_)["losses"],
            last_two);
}

// Variables in a file are loaded into it in pieces, never all of them into memory.
TEST_F(CommandLineOffload, ResumingTakesNoMemoryForWhatIsInAFile) {
  if (sanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const std::string train =
      "train --workload gpt2 --layers 8 --width 256 --heads 4 --sequence 16 --batch 1 --vocabulary "
      "8000 --eval-batches 0 --budget 40MiB --checkpoint " +
      (folder_ / "run").string() + " " + disk_;
  const Json begun = json_of(train + "--steps 1"),
             resumed = json_of(train + "--steps 2 --resume auto --change steps");
  constexpr std::int64_t some = 24 << 20;  // pieces, and the checkpoint's header
  ASSERT_GT(begun["tiers"]["disk"]["planned_bytes"].get<std::int64_t>(), 2 * some);
  EXPECT_LT(resumed["process_peak_bytes"].get<std::int64_t>(),
            begun["process_peak_bytes"].get<std::int64_t>() + some);
}

// The weights and state of levels that do not run need not be in memory.
TEST_F(CommandLineOffload, LevelsAreInMemoryWhileTheyRun) {
  const std::string levels = "--workload reweight --classifier mlp --hidden 256 --batch 16 ",
                    train = "train --steps 4 --eval-batches 1 " + levels,
                    run_folder = (folder_ / "run").string();
  const Json kept = json_of(train), lean = json_of(train + "--budget least"),
             moved = json_of(train + "--budget least " + disk_);
  EXPECT_EQ(moved["losses"], kept["losses"]);
  // The losses are summed in other groups, because less memory is left for evaluation.
  EXPECT_NEAR(moved["eval_loss"].get<double>(), kept["eval_loss"].get<double>(), 1e-5);
  EXPECT_LT(moved["planned_peak_bytes"], lean["planned_peak_bytes"]);
  EXPECT_EQ(moved["planned_peak_bytes"], moved["measured_peak_bytes"]);
  const Json& disk = moved["tiers"]["disk"];
  EXPECT_GT(disk["planned_bytes"], 1 << 20);
  EXPECT_EQ(disk["planned_bytes"], disk["measured_bytes"]);
  EXPECT_EQ(json_of("plan --budget least " + levels + disk_)["tiers"]["disk"]["planned_bytes"],
            disk["planned_bytes"]);
  // A run can be resumed with other tiers.
  json_of("train --steps 2 --budget least --eval-batches 0 --checkpoint " + run_folder + " " +
          levels + disk_);
  std::filesystem::copy(run_folder, run_folder + "2", std::filesystem::copy_options::recursive);
  const Json last_two = Json::array({kept["losses"][2], kept["losses"][3]});
  for (const std::string& tiers : {std::string(), "--budget least " + disk_}) {
    const std::string from = run_folder + (tiers.empty() ? "" : "2");
    EXPECT_EQ(json_of("train --steps 4 --change steps --eval-batches 0 --resume " + from + " " +
                      levels + tiers)["losses"],
              last_two);
  }
  expect_usage_error("plan --budget least --offload activations " + levels + disk_, "one level");
  expect_usage_error("plan --budget least --leaves 2 " + levels + disk_, "--disk-budget");
}

// The largest batch and the curve use the disk as training would.
TEST_F(CommandLineOffload, FitAndFrontierUseTheDisk) {
  const std::string fit =
      "fit --workload lm --layers 1 --width 64 --budget 2MiB --points 2 --most 32 ";
  const Json alone = json_of(fit), moved = json_of(fit + disk_);
  EXPECT_GT(moved["largest"], alone["largest"]);
  EXPECT_FALSE(alone["curve"][0].contains("tiers"));
  EXPECT_GT(moved["curve"][0]["tiers"]["disk"]["fetched_bytes"], 0);

  const auto curve = [&](const std::string& more) {
    const Outcome outcome = run("frontier --json --points 3 --out " +
                                (folder_ / "frontier").string() + " " + task_ + more);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return Json::parse(outcome.output.substr(outcome.output.find("{\"format\"")));
  };
  const Json plain = curve(""), tiers = curve(disk_);
  const Json &least = plain["curves"][0]["points"][0], &lower = tiers["curves"][0]["points"][0];
  EXPECT_LT(lower["budget_bytes"], least["budget_bytes"]);
  EXPECT_GT(lower["tiers"]["disk"]["planned_bytes"], 0);
  EXPECT_EQ(tiers["rows"][0]["tiers"]["disk"]["planned_bytes"],
            lower["tiers"]["disk"]["planned_bytes"]);
  EXPECT_NE(
      run("frontier --points 2 --out " + (folder_ / "frontier").string() + " " + task_ + disk_)
          .output.find("on disk"),
      std::string::npos);
  expect_usage_error("frontier --workload lm --host-budget 1GiB", "GPU");
  expect_usage_error("fit --workload lm --budget 1GiB --offload state", "--disk-budget");
}

// A copy slower than recomputation is not made, even if a rough estimate preferred it.
TEST_F(CommandLineOffload, IsNeverSlowerThanRecomputation) {
  const std::string plan = "plan --workload lm --layers 2 --width 128 --batch 64 --budget 20MiB ";
  const double alone = json_of(plan)["predicted_step_ms"];
  EXPECT_LE(json_of(plan + disk_)["predicted_step_ms"], alone);
}

// The page's data: the bytes in the tier, every copy, and lanes that run beside the kernels.
TEST_F(CommandLineOffload, ThePageIsToldOfTiersAndLanes) {
  const std::string out = (folder_ / "profile").string();
  ASSERT_EQ(run("profile --steps 1 --budget least --out " + out + " " + disk_ + task_).code, 0);
  std::ifstream file(out + "/report.html");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::string mark = "id=\"data\">";
  const std::size_t begin = page.find(mark) + mark.size();
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  const Json &timeline = data["timelines"]["lm"], &disk = timeline["tiers"][0],
             &lane = timeline["instructions"]["lane"],
             &clock = timeline["instructions"]["clock_ms"];
  EXPECT_EQ(disk["name"], "disk");
  EXPECT_EQ(disk["live"].size(), lane.size());
  for (const Json& bytes : disk["live"]) EXPECT_LE(bytes, disk["held_bytes"]);
  std::int64_t moved = 0;
  for (const Json& bytes : timeline["copies"]["bytes"]) moved += bytes.get<std::int64_t>();
  EXPECT_LE(moved, disk["fetched_bytes"].get<std::int64_t>() +
                       disk["stored_bytes"].get<std::int64_t>());  // which count whole pages
  EXPECT_GT(moved, 0);
  std::size_t copies = 0;
  for (std::size_t i = 0; i < lane.size(); ++i) {
    copies += lane[i] == 2 || lane[i] == 3;
    if (i > 0) {
      EXPECT_GE(clock[i], clock[i - 1]);
    }
  }
  EXPECT_EQ(copies, timeline["copies"]["bytes"].size());
  EXPECT_GE(timeline["end_ms"], clock.back());
}

// A disk with room for the budget is enough: measuring its rates takes no more than that.
TEST_F(CommandLineOffload, NoFileIsLargerThanTheBudget) {
  const std::string files_of_at_most_8_mib = "ulimit -f 16384; '" + program() + "' ",
                    train = "train --steps 2 --budget least --offload-folder " +
                            folder_.path().string() + " " + steps_ + "--disk-budget ";
  const Outcome small = run_command(files_of_at_most_8_mib + train + "4MiB");
  EXPECT_EQ(small.code, 0) << small.output;
  const Outcome large = run_command(files_of_at_most_8_mib + train + "16MiB");
  EXPECT_EQ(large.code, 1);
  EXPECT_NE(large.output.find("cannot reserve 16.00 MiB"), std::string::npos) << large.output;
  EXPECT_NE(large.output.find(folder_.path().string()), std::string::npos) << large.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(CommandLineOffload, OptionsThatHaveNoUseAreRefused) {
  const std::string train = "train --workload lm --steps 1 ";
  expect_usage_error(train + "--disk-budget 1GiB", "--budget");
  expect_usage_error(train + "--budget 1GiB --host-budget 1GiB", "GPU");
  expect_usage_error(train + "--budget 1GiB --offload state", "--disk-budget");
  expect_usage_error(train + "--budget 1GiB --offload-folder .", "--disk-budget");
  expect_usage_error(train + "--budget 1GiB --disk-budget 1GiB --offload gradients", "--offload");
  expect_failure(train + "--budget 1GiB --disk-budget 1GiB --offload-folder /proc", 1, "/proc");
}

}  // namespace
}  // namespace ebb::test
