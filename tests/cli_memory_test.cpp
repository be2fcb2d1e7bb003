// Budgets from the first step to the last line: evaluation and data are within them, a plan larger
// than the machine does not start, and a budget that was not kept is told.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    "--workload gpt2 --layers 2 --width 32 --heads 2 --sequence 32 --vocabulary 3000 --batch 16 ";

Json json_of(const std::string& arguments, int code = 0) {
  const Outcome outcome = run(arguments + " --json 2>/dev/null");
  EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.output;
  return Json::parse(outcome.output.substr(outcome.output.find('{')));
}

// A step in micro-batches takes less than evaluation of the whole batch would.
TEST(CommandLineMemory, EvaluationStaysWithinTheStep) {
  const Json whole = json_of("train --steps 2 --eval-batches 3 " + sizes),
             cut = json_of("train --steps 2 --eval-batches 3 --accumulate 16 " + sizes);
  EXPECT_LT(cut["planned_peak_bytes"], whole["planned_peak_bytes"]);
  EXPECT_LE(cut["measured_peak_bytes"], cut["planned_peak_bytes"]);
  EXPECT_LT(cut["eval_batch"], 16);
  EXPECT_EQ(cut["eval_items"], 48);
  EXPECT_EQ(whole["eval_items"], 48);
  // Rounding of the two ways to train and to average.
  EXPECT_NEAR(cut["eval_loss"].get<double>(), whole["eval_loss"].get<double>(), 1e-3);
}

TEST(CommandLineMemory, ABudgetIsForEvaluationToo) {
  const Json least = json_of("train --steps 2 --budget least " + sizes);
  EXPECT_LE(least["measured_peak_bytes"], least["planned_peak_bytes"]);
  EXPECT_EQ(least["budget_exceeded"], false);
  const Json several = json_of(
      "train --workload reweight --hidden 64 --batch 20 --meta 100 --steps 4 --budget least");
  EXPECT_LE(several["measured_peak_bytes"], several["planned_peak_bytes"]);
  EXPECT_EQ(several["budget_exceeded"], false);
}

// 60 MiB of images are part of what a process of 100 MiB holds.
TEST(CommandLineMemory, DataCountsAsPartOfTheProcess) {
  if (sanitized) GTEST_SKIP() << "a sanitizer's own memory is part of the process";
  const TemporaryFolder folder;
  const auto images = [](std::size_t count) {  // all of class 1, with pixels that differ
    std::string bytes(3073 * count, '\1');
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (i % 3073 != 0) bytes[i] = static_cast<char>(i % 251);
    return bytes;
  };
  folder.write("data_batch_1.bin", images(20000));
  folder.write("test_batch.bin", images(100));
  const std::string mlp = "--workload mlp --hidden 16 --data " + folder.path().string();
  const Json plan = json_of("plan --budget 4GiB --whole-process " + mlp),
             plain = json_of("plan --budget 4GiB --whole-process --workload mlp --hidden 16");
  EXPECT_GT(plan["fixed_bytes"].get<double>(), plain["fixed_bytes"].get<double>() + 50e6);
  expect_failure("train --steps 1 --whole-process --budget 60MiB " + mlp, 1, "fixed cost");
}

TEST(CommandLineMemory, APlanLargerThanTheMachine) {
  const std::string huge =
      "--workload gpt2 --layers 2 --width 65536 --heads 64 --sequence 4096 --batch 1024 ";
  const Outcome text = run("plan " + huge);
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.output.find("warning: the plan takes"), std::string::npos) << text.output;
  const Json plan = json_of("plan " + huge);
  EXPECT_EQ(plan["exceeds_memory"], true);
  EXPECT_GT(plan["planned_peak_bytes"], plan["available_bytes"]);
  EXPECT_EQ(json_of("plan " + sizes)["exceeds_memory"], false);
  expect_failure("train --steps 1 " + huge, 1, "--overcommit");
}

}  // namespace
}  // namespace ebb::test
