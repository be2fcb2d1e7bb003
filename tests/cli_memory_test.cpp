// Budgets from the first step to the last line: they cover evaluation and data, a plan larger than
// the machine does not start, and an exceeded budget is reported.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
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
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.output;
  const std::size_t begin = outcome.output.find('{');  // one line, which an error may follow
  return Json::parse(outcome.output.substr(begin, outcome.output.find('\n', begin) - begin));
}

// While it exists, every started process loads a library that takes memory (unplanned_memory).
struct UnplannedMemory {
  UnplannedMemory() { setenv("LD_PRELOAD", EBB_UNPLANNED_MEMORY, 1); }
  ~UnplannedMemory() { unsetenv("LD_PRELOAD"); }
};

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

// The peak that `ebb plan` predicts is the one that `ebb train` takes, including evaluation.
TEST(CommandLineMemory, PlansCountEvaluation) {
  for (const std::string& workload :
       {sizes, std::string("--workload reweight --hidden 64 --batch 20 --meta 100 ")})
    for (const char* budget : {"", "--budget least"}) {
      const Json plan = json_of("plan " + workload + budget),
                 run = json_of("train --steps 4 --eval-batches 1 " + workload + budget);
      EXPECT_EQ(plan["planned_peak_bytes"], run["planned_peak_bytes"]) << workload << budget;
      EXPECT_EQ(plan["eval_batch"], run["eval_batch"]) << workload << budget;
    }
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

// A library in the process takes 64 MiB after planning: the run completes, and reports that it
// exceeded its budget.
TEST(CommandLineMemory, AProcessOverItsBudget) {
  if (sanitized) GTEST_SKIP() << "a sanitizer must be the first library of a process";
  const TemporaryFolder folder;
  const std::string mlp = "--workload mlp --hidden 16 --steps 2 ";
  const Json plan = json_of("plan --budget 4GiB --whole-process --workload mlp --hidden 16");
  const std::int64_t budget = plan["fixed_bytes"].get<std::int64_t>() +
                              plan["planned_peak_bytes"].get<std::int64_t>() + (16 << 20);
  const std::string train = "train --whole-process --budget " + std::to_string(budget) + " " + mlp +
                            "--checkpoint " + folder.path().string();
  EXPECT_EQ(json_of(train + "/alone")["budget_exceeded"], false);
  const UnplannedMemory unplanned;
  const Outcome text = run(train + "/text");
  const Json over = json_of(train + "/json", 3);
  EXPECT_EQ(text.code, 3) << text.output;
  EXPECT_NE(text.output.find("was not kept: the process took"), std::string::npos) << text.output;
  EXPECT_EQ(over["budget_exceeded"], true);
  EXPECT_GT(over["process_peak_bytes"], budget);
  EXPECT_EQ(over["losses"].size(), 2u);
}

TEST(CommandLineMemory, AProfileOverItsBudget) {
  if (sanitized) GTEST_SKIP() << "a sanitizer must be the first library of a process";
  const TemporaryFolder folder;
  for (const char* workload :
       {"--workload mlp --hidden 16 ", "--workload reweight --hidden 16 --batch 20 --meta 100 "}) {
    const Json plan = json_of(std::string("plan --budget 4GiB --whole-process ") + workload);
    const std::int64_t budget = plan["fixed_bytes"].get<std::int64_t>() +
                                plan["planned_peak_bytes"].get<std::int64_t>() + (16 << 20);
    const std::string profile = "profile --steps 1 --whole-process --budget " +
                                std::to_string(budget) + " --out " + folder.path().string() + " " +
                                workload;
    EXPECT_EQ(json_of(profile)["rows"][0]["budget_bytes"], budget);
    const UnplannedMemory unplanned;
    const Outcome text = run(profile);
    EXPECT_EQ(text.code, 3) << text.output;
    EXPECT_NE(text.output.find("was not kept: the process took"), std::string::npos) << text.output;
  }
}

// 24 MiB of weights, which are checked and written without a copy.
TEST(CommandLineMemory, KeepingACheckpointTakesNoMemory) {
  if (sanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const TemporaryFolder folder;
  const std::string mlp =
      "train --workload mlp --hidden 2000 --batch 4 --eval-batches 0 --optimizer sgd --steps 2 ";
  EXPECT_LT(json_of(mlp + "--checkpoint " + folder.path().string())["process_peak_bytes"]
                .get<std::int64_t>(),
            json_of(mlp)["process_peak_bytes"].get<std::int64_t>() + (8 << 20));
}

// 24 MiB of weights: Adam has 47 MiB of state beside them, plain descent none.
TEST(CommandLineMemory, StateOfAnotherOptimizerIsNotKept) {
  if (sanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  const TemporaryFolder folder;
  const std::string mlp = "train --workload mlp --hidden 2000 --batch 4 --eval-batches 0 ",
                    sgd = "--optimizer sgd --lr 0.01 ", at = folder.path().string() + "/";
  const Json adam = json_of(mlp + "--optimizer adam --steps 1 --checkpoint " + at + "adam"),
             plain = json_of(mlp + sgd + "--steps 2 --checkpoint " + at + "sgd"),
             changed = json_of("train --steps 2 --change optimizer,lr " + sgd + "--resume " + at +
                               "adam");
  EXPECT_EQ(changed["planned_peak_bytes"], plain["planned_peak_bytes"]);
  EXPECT_EQ(changed["measured_peak_bytes"], plain["measured_peak_bytes"]);
  // A few MiB for reading a checkpoint, far less than Adam's state.
  EXPECT_LT(changed["process_peak_bytes"].get<std::int64_t>(),
            plain["process_peak_bytes"].get<std::int64_t>() + (8 << 20));
  EXPECT_GT(adam["process_peak_bytes"].get<std::int64_t>(),
            plain["process_peak_bytes"].get<std::int64_t>() + (40 << 20));
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
  expect_failure("profile --steps 1 " + huge, 1, "--overcommit");
}

// A row that does not fit is refused alone; a study without any remaining row fails.
TEST(CommandLineMemory, AStudyLargerThanTheMachine) {
  const TemporaryFolder folder;
  const std::string study =
      "ablate --workload gpt2 --layers 1 --width 65536 --heads 64 "
      "--sequence 4096 --batch 1024 --techniques fusion --steps 1 --runs 1 "
      "--points 0 --out " +
      folder.path().string();
  const Json result = json_of(study, 1);
  ASSERT_FALSE(result["rows"].empty());
  for (const Json& row : result["rows"])
    EXPECT_NE(row["error"].get<std::string>().find("--overcommit"), std::string::npos) << row;
}

// Two thousand million tokens at once, in a file that takes no space.
TEST(CommandLineMemory, AnEvaluationLargerThanTheMachine) {
  const TemporaryFolder folder;
  const auto tokens = folder.write("tokens.bin", "");
  std::filesystem::resize_file(tokens, 8'000'000'000);
  expect_failure("eval --batch 2000000000 --model " EBB_GOLDEN_FOLDER "/models/gpt2 --tokens " +
                     tokens.string(),
                 1, "--overcommit");
}

}  // namespace
}  // namespace ebb::test
