// `ebb ablate --workload reweight`: the study of a workload with several levels.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/study.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    "ablate --workload reweight --classifier mlp --layers 5 --width 48 --batch 64 --threads 1 ";

class CommandLineAblateReweight : public StudyTest {};

TEST_F(CommandLineAblateReweight, EveryRowKeepsItsPromise) {
  const Json study = result_of(sizes + out() + "--accumulate 2 --steps 3 --runs 2 --points 3");
  const auto rows = rows_of(study);
  for (const char* name :
       {"baseline", "fp16", "bf16", "accumulate", "accumulate+fp16", "blocks", "auto", "least",
        "fusion", "early-updates", "accumulate+blocks", "bf16+auto", "defaults", "all"})
    ASSERT_TRUE(rows.contains(name)) << name;
  EXPECT_FALSE(rows.contains("pure-bf16"));  // darts would lose its differences
  const auto peak = [&](const char* name) {
    return rows.at(name)["planned_peak_bytes"].get<std::int64_t>();
  };
  for (const auto& [name, row] : rows) {
    EXPECT_FALSE(row.contains("error")) << row.dump();
    EXPECT_EQ(row["planned_peak_bytes"], row["measured_peak_bytes"]) << name;
    std::int64_t sum = 0;
    for (const auto& [category, bytes] : row["planned_by_category"].items())
      sum += bytes.get<std::int64_t>();
    EXPECT_LE(sum, row["planned_peak_bytes"]) << name;
    EXPECT_GE(sum, row["planned_peak_bytes"].get<double>() * 0.95) << name;
    EXPECT_EQ(row["measured_staying_by_category"]["weights"], row["planned_by_category"]["weights"])
        << name;
    EXPECT_EQ(row["step_ms"]["runs"].size(), 2u);
    EXPECT_EQ(row["losses"].size(), 3u);
    // The first loss is of the same samples with the same weights; halves round it.
    EXPECT_NEAR(row["losses"][0], rows.at("baseline")["losses"][0], 0.02) << name;
  }
  for (const char* name : {"fusion", "early-updates", "blocks", "auto", "least", "defaults"})
    EXPECT_TRUE(rows.at(name)["same_losses_as_baseline"]) << name;
  EXPECT_FALSE(rows.at("fp16")["same_losses_as_baseline"]);
  EXPECT_LE(peak("least"), peak("auto"));
  EXPECT_LT(peak("auto"), peak("baseline"));
  EXPECT_LT(peak("accumulate"), peak("baseline"));
  EXPECT_LT(peak("all"), peak("accumulate"));
  EXPECT_LE(peak("auto"), rows.at("auto")["budget_bytes"]);
  ASSERT_EQ(study["curves"].size(), 2u);
  for (const Json& point : study["curves"][0]["points"])
    EXPECT_LE(point["planned_peak_bytes"], point["budget_bytes"]);
  EXPECT_EQ(study["settings"]["classifier"], "mlp");
  EXPECT_EQ(study["settings"]["levels"]["classifier"]["method"], "darts");
}

TEST_F(CommandLineAblateReweight, FilesAndResumption) {
  const std::string command = sizes + out() + "--techniques bf16,accumulate --steps 2 --points 0 ";
  const Json first = result_of(command + "--runs 1");
  for (const char* name : {"results.json", "results.csv", "results.md", "report.html"})
    EXPECT_GT(contents(file(name)).size(), 200u) << name;
  // The page shows the levels' programs one after the other.
  const Json timelines = Json::parse(contents(file("timelines.json")));
  ASSERT_EQ(timelines.size(), 3u);
  const Json& baseline = timelines["baseline"];
  EXPECT_EQ(baseline["instructions"]["op"].size(), first["rows"][0]["instructions"]);
  EXPECT_EQ(baseline["peak_bytes"], first["rows"][0]["planned_peak_bytes"]);
  const Json second = result_of(command + "--runs 2 --resume");
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(second["rows"][i]["step_ms"]["runs"].size(), 2u);
    EXPECT_EQ(second["rows"][i]["step_ms"]["runs"][0], first["rows"][i]["step_ms"]["runs"][0]);
    EXPECT_EQ(second["rows"][i]["losses"], first["rows"][i]["losses"]);
  }
  expect_failure(command + "--runs 2 --resume --method neumann", 1, "another levels");
}

TEST_F(CommandLineAblateReweight, WithAnotherMethodOtherTechniquesApply) {
  const Json study =
      result_of(sizes + out() +
                "--method neumann --classifier.optimizer adamw --classifier.lr 1e-3 --techniques "
                "pure-bf16,adamw8bit --steps 2 --runs 1 --points 0");
  const auto rows = rows_of(study);
  for (const char* name : {"pure-bf16", "adamw8bit"}) {
    ASSERT_TRUE(rows.at(name).contains("step_ms")) << rows.at(name).dump();
    EXPECT_LT(rows.at(name)["memory_ratio"], 1.0) << name;
    EXPECT_EQ(rows.at(name)["planned_peak_bytes"], rows.at(name)["measured_peak_bytes"]) << name;
  }
}

TEST_F(CommandLineAblateReweight, WhatCannotBe) {
  expect_usage_error(sizes + "--items 100", "--items");
  expect_usage_error(sizes + "--techniques fused-loss", "changes nothing");
  expect_usage_error(sizes + "--techniques split-bf16", "not possible");
  expect_usage_error(sizes + "--techniques adafactor", "changes nothing");
  expect_usage_error(sizes + "--classifier.budget 1MiB", "--classifier.budget");
  const Json study =
      result_of(sizes + out() + "--accumulate 3 --techniques accumulate --steps 1 --runs 1");
  EXPECT_NE(rows_of(study).at("accumulate")["error"].get<std::string>().find("3 equal parts"),
            std::string::npos);
}

}  // namespace
}  // namespace ebb::test
