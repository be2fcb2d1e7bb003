// `ebb train --prune`: models that become smaller during a run, their checkpoints and saved
// folders.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/command_line.h"
#include "support/json_result.h"
#include "support/model_folders.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

const std::string gpt2 = small_gpt2(2, 32, 4, 2);
const std::string cubic = "--prune 0.5 --prune-until 6 --prune-every 2 ";

Json tail(const Json& list, std::size_t from) {
  return Json(std::vector<Json>(list.begin() + static_cast<std::ptrdiff_t>(from), list.end()));
}

struct Case {
  std::string name, options, structure;
};
void PrintTo(const Case& c, std::ostream* to) { *to << c.name; }
class PruneInTraining : public testing::TestWithParam<Case> {};

// Removed groups are gone from weights, gradients, state and plan. A run resumed between two cuts
// or after the last one repeats the same bits; so does a run within a budget.
TEST_P(PruneInTraining, ShrinksAndResumes) {
  const TemporaryFolder folder;
  const std::string start = GetParam().options + " " + cubic;
  const Json whole = result_of(start + "--steps 8");
  ASSERT_TRUE(whole.contains("pruning")) << whole;
  const Json& pruning = whole["pruning"];
  EXPECT_EQ(pruning["share"], 0.5);
  EXPECT_EQ(pruning["sizes"].size(), 4u);  // dense, and after 2, 4 and 6 steps
  for (const char* what : {"parameters", "bytes", "planned_peak_bytes", "held_bytes"})
    EXPECT_LT(pruning[what]["after"], pruning[what]["before"]) << what;
  for (const Json& size : pruning["sizes"])
    EXPECT_GE(size["held_bytes"], size["weights_gradients_state"]) << size;
  EXPECT_EQ(whole["params"], pruning["parameters"]["after"]);
  EXPECT_EQ(whole["measured_peak_bytes"], whole["planned_peak_bytes"]);

  for (const std::string stop : {"3", "7"}) {
    const std::string at = (folder / ("at" + stop)).string();
    const Json first = result_of(start + "--steps " + stop + " --checkpoint " + at);
    const Json rest = result_of("train --steps 8 --resume " + at);
    EXPECT_EQ(rest["losses"], tail(whole["losses"], std::stoul(stop))) << stop;
    EXPECT_EQ(rest["eval_loss"], whole["eval_loss"]) << stop;
    EXPECT_EQ(rest["params"], whole["params"]) << stop;
  }
  const Json tight = result_of(start + "--steps 8 --budget least");
  EXPECT_EQ(tight["losses"], whole["losses"]);
}

INSTANTIATE_TEST_SUITE_P(
    Workloads, PruneInTraining,
    testing::Values(
        Case{"gpt2", gpt2, ""}, Case{"one_head_left", small_gpt2(2, 32, 2, 2), ""},
        Case{"llama",
             "train --workload llama --layers 2 --width 32 --heads 8 --kv-heads 4 --hidden 40 "
             "--sequence 16 --vocabulary 61 --batch 2 --eval-batches 2",
             ""},
        Case{"lm", "train --workload lm --batch 8 --heads 4 --eval-batches 2", ""},
        Case{"split_bf16", gpt2 + "--precision split-bf16", ""},
        Case{"bert",
             "train --workload bert --layers 2 --width 32 --heads 4 --hidden 40 --sequence 16 "
             "--vocabulary 61 --batch 4 --eval-batches 2",
             ""},
        Case{"resnet", "train --workload resnet --depth 18 --batch 2 --eval-batches 1", ""},
        Case{"mlp", "train --workload mlp --batch 8 --eval-batches 2", ""}),
    [](const testing::TestParamInfo<Case>& parameter) { return parameter.param.name; });

TEST(CommandLinePruning, TheFolderIsRead) {
  const TemporaryFolder folder;
  const std::string saved = (folder / "saved").string(), again = (folder / "again").string();
  const Json made = result_of(gpt2 + cubic + "--steps 6 --save " + saved);
  EXPECT_EQ(made["pruning"]["loads_in_transformers"], false);
  EXPECT_NE(made["pruning"]["why_not"].get<std::string>().find("size of a head"),
            std::string::npos);
  const Json config = Json::parse(std::ifstream(saved + "/config.json"));
  EXPECT_EQ(config["n_head"], 2);
  EXPECT_EQ(config["head_dim"], 8);
  EXPECT_EQ(config["n_inner"], 64);
  // The folder is trained further and pruned again.
  std::ofstream file(folder / "t.bin", std::ios::binary);
  for (std::int32_t i = 0; i < 400; ++i) {
    const std::int32_t token = (i * i * 7 + i) % 61;
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  file.close();
  const Json next =
      result_of("train --model " + saved + " --tokens int32 --data " + (folder / "t.bin").string() +
                " --sequence 16 --batch 2 --steps 2 --eval-batches 1 --prune 0.5 "
                "--prune-schedule constant --prune-from 1 --save " +
                again);
  EXPECT_EQ(next["pruning"]["parameters"]["before"], made["params"]);
  EXPECT_EQ(Json::parse(std::ifstream(again + "/config.json"))["n_head"], 1);
  const Json neurons = result_of(gpt2 + cubic + "--prune-structure neurons --prune-multiple 32 " +
                                 "--steps 6 --save " + saved + "2");
  EXPECT_EQ(neurons["pruning"]["loads_in_transformers"], true);
}

TEST(CommandLinePruning, CheckpointsAreExported) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), file = (folder / "m.onnx").string();
  const Json made = result_of(gpt2 + cubic + "--steps 6 --checkpoint " + at);
  const Outcome exported = run("export --checkpoint " + at + " --onnx " + file + " --json");
  ASSERT_EQ(exported.code, 0) << exported.output;
  EXPECT_EQ(Json::parse(exported.output.substr(exported.output.find('{')))["parameters"],
            made["params"]);
}

TEST(CommandLinePruning, WhatCannotBeIsRefused) {
  const std::string one = gpt2 + "--steps 1 ";
  expect_usage_error(one + "--prune 0.5", "--prune-until");
  expect_usage_error(one + "--prune 1 --prune-until 4", "greater than 0 and less than 1");
  expect_usage_error(one + "--prune-every 4", "needs --prune");
  expect_usage_error(one + "--prune 0.5 --prune-schedule constant --prune-until 4", "no effect");
  expect_usage_error(one + "--prune 0.5 --prune-from 4 --prune-until 4", "after step 4");
  expect_usage_error(one + "--prune 0.5 --prune-schedule constant", "--prune-from");
  expect_usage_error(one + cubic + "--sparsity 0.5 --sparsity-until 4", "--sparsity");
  expect_usage_error(one + cubic + "--leaves 2", "one rank");
  expect_usage_error(one + cubic + "--optimizer adamw8bit", "cannot be cut");
  expect_usage_error(one + cubic + "--optimizer adafactor", "cannot be cut");
  expect_usage_error(one + cubic + "--disk-budget 1GiB --offload state", "offloading");
  const TemporaryFolder folder;
  expect_usage_error(one + cubic + "--eval-every 1 --keep-best --checkpoint " +
                         (folder / "run").string() + " --save " + (folder / "saved").string(),
                     "--keep-best");
  const Outcome channels = run(one + cubic + "--prune-structure channels");
  EXPECT_NE(channels.code, 0);
  EXPECT_NE(channels.output.find("has no channels"), std::string::npos) << channels.output;
}

TEST(CommandLinePruning, TheFrontierTellsLossAgainstBytes) {
  const TemporaryFolder folder;
  const std::string out = " --out " + (folder / "out").string();
  const std::string small =
      "frontier --workload gpt2 --layers 1 --width 64 --heads 4 --sequence 16 --vocabulary 61 ";
  const Outcome outcome = run(small + "--prune 0.25,0.5 --recover 2 --eval-batches 1 --json" + out);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json points = Json::parse(outcome.output.substr(outcome.output.find('{')))["points"];
  ASSERT_EQ(points.size(), 3u);
  for (std::size_t i = 1; i < 3; ++i)
    for (const char* what : {"parameters", "weight_bytes", "weights_gradients_state"})
      EXPECT_LT(points[i][what], points[i - 1][what]) << what;
  expect_usage_error(small + "--prune 0.5" + out, "--recover");
  expect_usage_error(small + "--recover 2" + out, "--prune");
}

TEST(CommandLinePruning, TheStudyHasRowsForIt) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run("ablate --workload gpt2 --layers 1 --width 16 --heads 4 --sequence 16 --vocabulary 61 "
          "--techniques prune,sparse,sparse-2:4,fused-loss+prune --steps 2 --runs 1 --points 0 "
          "--json --out " +
          (folder / "out").string());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json rows = Json::parse(outcome.output.substr(outcome.output.find('{')))["rows"];
  ASSERT_EQ(rows.size(), 5u);
  for (const Json& row : rows) EXPECT_FALSE(row.contains("error")) << row;
  EXPECT_LT(rows[1]["planned_peak_bytes"], rows[0]["planned_peak_bytes"]);
}

// Rows for folders: adapters beside frozen weights in fewer and fewer bits.
TEST(CommandLinePruning, TheStudyOfAFolderHasAdapters) {
  const TemporaryFolder folder;
  const Outcome outcome =
      run("ablate --model " + (golden_models / "gpt2").string() + " --tokens int32 --data " +
          (golden_models / "tokens.bin").string() +
          " --sequence 8 --batch 2 --techniques lora,lora-int8,lora-int4,lora-nf4 --steps 2 "
          "--runs 1 --points 0 --json --out " +
          (folder / "out").string());
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json rows = Json::parse(outcome.output.substr(outcome.output.find('{')))["rows"];
  ASSERT_EQ(rows.size(), 5u);
  for (const Json& row : rows) EXPECT_FALSE(row.contains("error")) << row;
}

}  // namespace
}  // namespace ebb::test
