// `ebb ablate`, `ebb profile` and `ebb frontier` as users see them: their numbers, their files,
// interruption and resumption.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "support/model_folders.h"
#include "support/study.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string sizes =
    "--workload gpt2 --layers 3 --width 32 --heads 2 --sequence 32 --vocabulary 300 --batch 4 "
    "--threads 1 ";

class CommandLineAblate : public StudyTest {};

TEST_F(CommandLineAblate, EveryRowKeepsItsPromise) {
  const Json study = result_of("ablate " + sizes + out() + "--steps 3 --runs 2 --points 3");
  const auto rows = rows_of(study);
  for (const char* name :
       {"baseline", "fusion", "fused-loss", "early-updates", "accumulate", "segment-4", "blocks",
        "auto", "least", "adamw8bit", "adafactor", "accumulate+blocks", "defaults", "all"})
    ASSERT_TRUE(rows.contains(name)) << name;
  const Json& baseline = rows.at("baseline");
  for (const auto& [name, row] : rows) {
    EXPECT_FALSE(row.contains("error")) << row.dump();
    EXPECT_EQ(row["planned_peak_bytes"], row["measured_peak_bytes"]) << name;
    std::int64_t sum = 0;
    for (const auto& [category, bytes] : row["planned_by_category"].items())
      sum += bytes.get<std::int64_t>();
    // The rest is lost to whole pages and gaps of the arena, which is much for small models.
    EXPECT_LE(sum, row["planned_peak_bytes"]) << name;
    EXPECT_GE(sum, row["planned_peak_bytes"].get<double>() * 0.95) << name;
    EXPECT_EQ(row["measured_staying_by_category"]["weights"], row["planned_by_category"]["weights"])
        << name;
    EXPECT_EQ(row["step_ms"]["runs"].size(), 2u);
    EXPECT_LE(row["step_ms"]["low"], row["step_ms"]["high"]);
    EXPECT_EQ(row["losses"].size(), 3u);
    EXPECT_NEAR(
        row["memory_ratio"],
        row["planned_peak_bytes"].get<double>() / baseline["planned_peak_bytes"].get<double>(),
        1e-5);
  }
  // Techniques that do not change the arithmetic change no bit.
  for (const char* name : {"fusion", "early-updates", "segment-4", "blocks", "auto", "least"})
    EXPECT_TRUE(rows.at(name)["same_losses_as_baseline"]) << name;
  EXPECT_FALSE(rows.at("adafactor")["same_losses_as_baseline"]);
  const auto peak = [&](const char* name) {
    return rows.at(name)["planned_peak_bytes"].get<std::int64_t>();
  };
  EXPECT_LT(peak("accumulate"), peak("baseline"));
  EXPECT_LT(peak("blocks"), peak("baseline"));
  EXPECT_LE(peak("auto"), peak("blocks"));
  EXPECT_LE(peak("least"), peak("auto"));
  EXPECT_LT(peak("adafactor"), peak("baseline"));
  for (const auto& [name, row] : rows) EXPECT_GE(row["planned_peak_bytes"], peak("all")) << name;
  EXPECT_LE(rows.at("auto")["overhead"], rows.at("blocks")["overhead"]);
  ASSERT_EQ(study["curves"].size(), 2u);
  EXPECT_EQ(study["curves"][0]["points"].size(), 3u);
}

TEST_F(CommandLineAblate, FilesSayTheSame) {
  const std::string command = "ablate " + sizes + out() +
                              "--techniques blocks,accumulate+adafactor,all --steps 2 --runs 1 ";
  const Outcome outcome = run(command);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  std::string line;
  for (const char c : outcome.output) {
    if (c != '\n') {
      line += c;
      continue;
    }
    if (line.find("report.html") == std::string::npos) {
      EXPECT_LE(line.size(), 100u) << line;
    }
    line.clear();
  }
  const Json study = Json::parse(contents(file("results.json")));
  const std::string csv = contents(file("results.csv")), markdown = contents(file("results.md")),
                    page = contents(file("report.html"));
  ASSERT_EQ(study["rows"].size(), 4u);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 5);
  const std::string header = csv.substr(0, csv.find('\n'));
  for (const Json& row : study["rows"]) {
    const std::string name = row["name"],
                      peak = std::to_string(row["planned_peak_bytes"].get<std::int64_t>());
    const std::size_t at = csv.find("\n" + name + "," + peak + ",");
    ASSERT_NE(at, std::string::npos) << name;
    const std::string cells = csv.substr(at + 1, csv.find('\n', at + 1) - at - 1);
    EXPECT_EQ(std::count(cells.begin(), cells.end(), ','),
              std::count(header.begin(), header.end(), ','));
    EXPECT_NE(page.find("\"name\":\"" + name + "\""), std::string::npos);
  }
  EXPECT_NE(markdown.find("| accumulate + adafactor |"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("    " + study["facts"]["command"].get<std::string>()),
            std::string::npos);
  EXPECT_NE(study["facts"]["command"].get<std::string>().find("ebb ablate --workload gpt2"),
            std::string::npos);
  // Nothing to fetch: url() names parts of the page.
  const std::string head = page.substr(0, page.find("<body>"));
  for (const char* part : {"http://", "https://", "src=", "@import"})
    EXPECT_EQ(head.find(part), std::string::npos) << part;
  for (std::size_t at = head.find("url("); at != std::string::npos; at = head.find("url(", at + 1))
    EXPECT_EQ(head.substr(at, 5), "url(#");
}

TEST_F(CommandLineAblate, GoesOnWhereItWasEnded) {
  // Ended by a signal in the middle of many steps, then resumed with the same settings.
  const std::string command =
      "ablate " + sizes + out() + "--techniques blocks --steps 400 --runs 3 --points 0 ";
  const std::string results = file("results.json").string();
  const Outcome ended = run(
      command + "& pid=$!; for i in $(seq 900); do [ \"$(grep -cs '\"step_ms\"' " + results +
      ")\" = 2 ] && break; sleep 0.1; done; kill -INT $pid; " + "wait $pid; echo ended with $?");
  EXPECT_NE(ended.output.find("ended with 130"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("--resume"), std::string::npos) << ended.output;
  const Json before = Json::parse(contents(file("results.json")));
  ASSERT_GE(before["rows"].size(), 2u);
  EXPECT_TRUE(std::filesystem::exists(file("report.html")));
  const Json after = result_of(command + "--resume");
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& old_runs = before["rows"][i]["step_ms"]["runs"];
    const Json& runs = after["rows"][i]["step_ms"]["runs"];
    EXPECT_LT(before["rows"][1]["step_ms"]["runs"].size(), 3u);
    ASSERT_EQ(runs.size(), 3u);
    for (std::size_t k = 0; k < old_runs.size(); ++k) EXPECT_EQ(old_runs[k], runs[k]);
    EXPECT_EQ(before["rows"][i]["losses"], after["rows"][i]["losses"]);
  }
  expect_failure("ablate " + sizes + out() + "--techniques blocks --steps 7 --resume", 1,
                 "it was made with another steps: 400, not 7");
  expect_failure("ablate --resume --out " + (folder_ / "nothing").string(), 1, "is there a study");
}

// A study must be continued with the settings of its rows, and a row that cannot be measured leaves
// the existing results.
TEST_F(CommandLineAblate, ResultsAreOfOneStudy) {
  const std::string study =
      "ablate " + sizes + out() + "--techniques fusion --steps 1 --runs 1 --points 0 ";
  result_of(study + "--lora 2 --lora-alpha 3");
  const std::string before = contents(file("results.json"));
  expect_failure(study + "--lora 2 --lora-alpha 4 --resume", 1,
                 "made with another lora_alpha: 3.0, not 4.0");
  expect_failure(study + "--lora 2 --resume", 1, "made with another lora_alpha: 3.0, not null");
  expect_usage_error(study + "--items 1", "less than one batch");
  expect_usage_error(study + "--items 100000000", "there are only");
  EXPECT_EQ(contents(file("results.json")), before);
}

// Rows that are added later are compared with the existing ones, so the files must be the same.
TEST_F(CommandLineAblate, FilesAreKnownByTheirContent) {
  const std::filesystem::path text = folder_ / "text.txt", model = folder_ / "gpt2";
  const auto write_text = [&](char letter) {
    std::ofstream(text) << std::string(2000, letter) << " " << letter;
  };
  write_text('a');
  const std::string rows = "--techniques fusion --steps 1 --runs 1 --points 0 --threads 1 ",
                    words = "ablate --workload lm --hidden 8 --batch 4 --sequence 8 --data " +
                            text.string() + " " + out() + rows;
  result_of(words);
  result_of(words + "--resume");
  write_text('b');
  expect_failure(words + "--resume", 1, "made with another file text.txt");

  std::filesystem::copy(golden_models / "gpt2", model);
  const std::string tokens = (folder_ / "tokens.bin").string();
  std::ofstream(tokens) << std::string(2000, '\0');
  const std::string tune = "ablate --model " + model.string() + " --data " + tokens +
                           " --sequence 8 --batch 2 " + out() + rows;
  result_of(tune);
  std::ofstream(model / "config.json", std::ios::app) << "\n";
  expect_failure(tune + "--resume", 1, "made with another model config.json");
}

TEST_F(CommandLineAblate, ARowThatCannotBeLeavesTheOthers) {
  const Json study = result_of("ablate " + sizes + out() +
                               "--techniques auto,fusion --budget 1KiB --steps 1 --runs 1");
  const auto rows = rows_of(study);
  EXPECT_NE(rows.at("auto")["error"].get<std::string>().find("cannot be kept"), std::string::npos);
  EXPECT_TRUE(rows.at("fusion").contains("step_ms"));
  EXPECT_NE(contents(file("results.md")).find("cannot be kept"), std::string::npos);
}

TEST_F(CommandLineAblate, OtherWorkloadsLeaveOutWhatDoesNotApply) {
  const Json study = result_of("ablate --workload resnet --depth 18 --batch 2 --threads 1 " +
                               out() + "--techniques defaults,all --steps 1 --runs 1 --points 0");
  for (const Json& row : study["rows"])
    for (const Json& technique : row["techniques"]) {
      EXPECT_NE(technique, "fused-loss");  // ten logits
      EXPECT_NE(technique, "adafactor");   // trains with momentum
    }
  expect_usage_error("ablate --workload resnet --techniques fused-loss", "changes nothing");
  expect_usage_error("ablate --workload mlp --batch 1 --techniques accumulate", "changes nothing");
  expect_usage_error("ablate --techniques fly", "there is no technique \"fly\"");
  expect_usage_error("ablate --techniques blocks+auto", "exclude each other");
  expect_usage_error("ablate --device nowhere", "neither cpu nor cuda");
  expect_usage_error("ablate --items 2 --epochs 1 --batch 4", "less than one batch");
}

TEST_F(CommandLineAblate, MicroBatchesAreEqualParts) {
  const auto parts = [&](const std::string& batch) {
    return result_of(
        "ablate --workload mlp --layers 1 --batch " + batch + " " + out() +
        "--techniques accumulate --steps 1 --runs 1 --points 0")["settings"]["accumulate"];
  };
  EXPECT_EQ(parts("3"), 3);
  EXPECT_EQ(parts("8"), 4);
}

TEST_F(CommandLineAblate, EpochsOverTheFirstItems) {
  const Json study = result_of("ablate " + sizes + out() +
                               "--techniques fusion --items 8 --epochs 3 --runs 1 --points 0");
  EXPECT_EQ(study["settings"]["steps"], 6);
  EXPECT_EQ(study["settings"]["samples"], 24);
  for (const char* many : {"--items 8 --epochs 9000000000000000000", "--steps 9000000000000000000"})
    expect_usage_error("ablate " + sizes + out() + "--techniques fusion --runs 1 " + many,
                       "than can be counted");
}

TEST_F(CommandLineAblate, ProfileTimesEveryKernel) {
  const Json study = result_of("profile " + sizes + out() + "--recompute blocks --steps 2");
  const Json& row = study["rows"][0];
  EXPECT_EQ(row["planned_peak_bytes"], row["measured_peak_bytes"]);
  EXPECT_GT(row["recomputed_nodes"], 0);
  const Json trace = Json::parse(contents(file("trace.json")));
  std::int64_t kernels = 0;
  double end = 0.0;
  std::set<std::string> phases;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X") {
      ++kernels;
      EXPECT_GE(event["ts"].get<double>(), end - 0.01);
      end = event["ts"].get<double>() + event["dur"].get<double>();
      phases.insert(event["cat"]);
    }
  EXPECT_EQ(kernels, row["instructions"]);
  EXPECT_EQ(phases, (std::set<std::string>{"forward", "backward", "update", "computed again"}));
  expect_usage_error("profile --device " + folder_.write("device.json", "{}").string(),
                     "runs the step");
}

TEST_F(CommandLineAblate, FrontierGoesFromTheLeastToAll) {
  const Json study = result_of("frontier " + sizes + out() + "--points 4");
  const Json& points = study["curves"][0]["points"];
  ASSERT_EQ(points.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_LE(points[i]["planned_peak_bytes"], points[i]["budget_bytes"]);
    EXPECT_EQ(points[i]["planned_peak_bytes"], study["rows"][i]["planned_peak_bytes"]);
    if (i > 0) {
      EXPECT_GE(points[i - 1]["overhead"], points[i]["overhead"]);
    }
  }
  EXPECT_EQ(points[3]["overhead"], 1.0);
  const std::string picture = contents(file("frontier.svg"));
  std::size_t dots = 0;
  for (std::size_t at = picture.find("<circle"); at != std::string::npos;
       at = picture.find("<circle", at + 1))
    ++dots;
  EXPECT_EQ(dots, 4u);
  EXPECT_EQ(result_of("plan " + sizes)["min_feasible_bytes"], points[0]["budget_bytes"]);
  // Budgets are closer together where time rises fast, which is near the smallest.
  const Json more = result_of("frontier " + sizes + out() + "--points 8");
  const Json& finer = more["curves"][0]["points"];
  const auto width = [&](std::size_t i) {
    return finer[i + 1]["budget_bytes"].get<std::int64_t>() -
           finer[i]["budget_bytes"].get<std::int64_t>();
  };
  EXPECT_LT(width(0), width(finer.size() - 2));
}

// The first loss precedes any update: equal losses after one or two steps prove nothing.
TEST_F(CommandLineAblate, FewStepsDoNotShowEqualLosses) {
  const std::string command =
      "ablate " + sizes + out() + "--techniques blocks --runs 1 --points 0 ";
  EXPECT_FALSE(result_of(command + "--steps 2")["rows"][1].contains("same_losses_as_baseline"));
  EXPECT_TRUE(result_of(command + "--steps 3")["rows"][1]["same_losses_as_baseline"]);
}

// Tensors that no module makes have names too.
TEST_F(CommandLineAblate, LogitsAreNamed) {
  const std::string text =
      run("plan --workload gpt2 --layers 1 --width 32 --heads 2 --sequence 32 --vocabulary 4000 "
          "--batch 4")
          .output;
  EXPECT_NE(text.find("logits"), std::string::npos) << text;
}

}  // namespace
}  // namespace ebb::test
