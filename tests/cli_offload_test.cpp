// Offloading to a disk as a user meets it: budgets by tier, the report, files of plans, checkpoints
// and errors.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/command_line.h"
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

TEST_F(CommandLineOffload, OptionsThatHaveNoUseAreRefused) {
  const std::string train = "train --workload lm --steps 1 ";
  expect_usage_error(train + "--disk-budget 1GiB", "--budget");
  expect_usage_error(train + "--budget 1GiB --host-budget 1GiB", "GPU");
  expect_usage_error(train + "--budget 1GiB --offload state", "--disk-budget");
  expect_usage_error(train + "--budget 1GiB --offload-folder .", "--disk-budget");
  expect_usage_error(train + "--budget 1GiB --disk-budget 1GiB --offload gradients", "--offload");
  expect_usage_error("train --workload reweight --steps 1 --budget 1GiB --disk-budget 1GiB",
                     "one level");
  expect_failure(train + "--budget 1GiB --disk-budget 1GiB --offload-folder /proc", 1, "/proc");
}

}  // namespace
}  // namespace ebb::test
