// `ebb plan --save` and `ebb train --plan`: a plan made by one process and run by another.
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

TEST(CommandLinePlanFile, APlanIsRunByAnotherProcess) {
  const TemporaryFolder folder;
  const std::string file = (folder / "step.plan").string();
  for (const std::string step :
       {"--workload gpt2 --layers 2 --width 32 --heads 2 --sequence 16 --vocabulary 61 "
        "--dropout 0.1 --batch 4 --accumulate 2 --clip 1 --precision bf16",
        "--workload mlp --layers 3 --width 64 --batch 32 --optimizer adam8bit",
        "--workload resnet --depth 18 --batch 2"}) {
    SCOPED_TRACE(step);
    const std::string steps = " --steps 3 --eval-batches 1";
    const std::int64_t peak = json_of("plan " + step + " --budget least")["planned_peak_bytes"];
    const std::string budget = " --budget " + std::to_string(peak + peak / 8);
    const Json plan = json_of("plan " + step + budget + " --save " + file);
    const Json made = json_of("train " + step + budget + steps);
    const Json read = json_of("train " + step + steps + " --plan " + file);
    EXPECT_EQ(read["losses"], made["losses"]);
    EXPECT_EQ(read["planned_peak_bytes"], plan["planned_peak_bytes"]);
    EXPECT_EQ(read["recomputed_nodes"], plan["recomputed_nodes"]);
  }
}

TEST(CommandLinePlanFile, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const std::string file = (folder / "step.plan").string(),
                    step = "--workload mlp --layers 2 --width 16 --eval-batches 0 ";
  ASSERT_EQ(run("plan --workload mlp --layers 2 --width 16 --batch 8 --save " + file).code, 0);
  EXPECT_EQ(run("train " + step + "--steps 1 --batch 8 --plan " + file).code, 0);
  expect_failure("train " + step + "--steps 1 --batch 9 --plan " + file, 1, "another graph");
  expect_failure("train " + step + "--steps 1 --batch 8 --clip 1 --plan " + file, 1,
                 "another graph");
  expect_usage_error("train " + step + "--batch 8 --budget 1GiB --plan " + file, "--budget");
  expect_usage_error("train " + step + "--batch 8 --plan " + file + "x", "--plan");
  expect_usage_error("train --workload reweight --plan " + file, "--plan");
  expect_usage_error("plan --workload reweight --save " + file, "--save");
}

}  // namespace
}  // namespace ebb::test
