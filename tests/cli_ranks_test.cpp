// `ebb launch` and `ebb train` on several processes: bits, plans, failures and checkpoints.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support/command_line.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string
    gpt2 =
        "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 61 "
        "--dropout 0.1 --clip 1 --batch 8 --leaves 4 --threads 1 ",
    llama =
        "train --workload llama --layers 1 --width 16 --heads 2 --sequence 16 "
        "--vocabulary 61 --batch 8 --leaves 4 --threads 1 ",
    resnet =
        "train --workload resnet --depth 32 --batch 8 --leaves 4 "
        "--threads 1 ";

std::string launched(int ranks, const std::string& command) {
  return ranks == 1 ? command : "launch -n " + std::to_string(ranks) + " -- " + command;
}

// The JSON on the last line.
Json result_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  const std::string lines = '\n' + outcome.output;
  const std::size_t begin = lines.rfind("\n{");
  if (outcome.code != 0 || begin == std::string::npos) return {};
  return Json::parse(lines.substr(begin + 1));
}

TEST(CommandLineRanks, TheNumberOfRanksChangesNoBit) {
  const std::string end = "--steps 3 --eval-batches 0";
  for (const std::string& task : {gpt2, llama}) {
    const Json alone = result_of(task + end)["losses"];
    ASSERT_EQ(alone.size(), 3u);
    for (const auto& [ranks, shard] : {std::pair{2, "3"}, {3, "1"}, {4, "2"}})
      EXPECT_EQ(result_of(launched(ranks, task + "--shard " + shard + " " + end))["losses"], alone)
          << ranks << " ranks: " << task;
  }
}

// Running statistics go from leaf to leaf, across ranks.
TEST(CommandLineRanks, BatchNormKeepsItsStatistics) {
  const std::string task = resnet + "--steps 2 --eval-batches 1";
  const Json alone = result_of(task), shared = result_of(launched(2, task));
  EXPECT_EQ(shared["losses"], alone["losses"]);
  EXPECT_EQ(shared["eval_loss"], alone["eval_loss"]);
}

TEST(CommandLineRanks, EveryRankKeepsItsPlan) {
  const Json result = result_of(launched(3, gpt2 + "--steps 2 --eval-batches 0 --shard 1"));
  ASSERT_EQ(result["ranks"], 3);
  ASSERT_EQ(result["per_rank"].size(), 3u);
  // A plan needs no ranks.
  const Json plan = result_of("plan --ranks 3 --shard 1 " + gpt2.substr(6));
  for (const char* field : {"arena_bytes", "bytes_sent_per_rank", "collectives", "leaves_per_rank"})
    EXPECT_EQ(plan[field], result[field]) << field;
  for (int r = 0; r < 3; ++r) {
    const Json& rank = result["per_rank"][static_cast<std::size_t>(r)];
    EXPECT_EQ(rank["rank"], r);
    EXPECT_EQ(rank["planned_peak_bytes"], rank["measured_peak_bytes"]);
    EXPECT_EQ(rank["planned_peak_bytes"], result["per_rank"][0]["planned_peak_bytes"]);
    EXPECT_GT(rank["bytes_sent"], 0);
  }
}

// Times of every rank are in the log and on the page.
TEST(CommandLineRanks, TheLogTellsWhoWaits) {
  const TemporaryFolder folder;
  const std::string log = (folder / "log").string();
  result_of(launched(2, gpt2 + "--steps 3 --eval-batches 0 --shard 3 --log " + log));
  const auto text = [&](const char* file) {
    std::ifstream in(folder / "log" / file, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  for (const char* tag : {"ranks/0/step_ms", "ranks/1/waited_ms"})
    EXPECT_NE(text("log.jsonl").find(tag), std::string::npos) << tag;
  EXPECT_NE(text("summary.html").find("<h2>Ranks</h2>"), std::string::npos);
}

// The stage is chosen by the budget, without any rank.
TEST(CommandLineRanks, TheStageIsChosenByTheBudget) {
  const std::string plan =
      "plan --workload llama --layers 2 --width 64 --heads 2 --sequence 16 --vocabulary 61 --batch "
      "4 --ranks 4 ";
  const Json whole = result_of(plan + "--shard 0"), ranges = result_of(plan + "--shard 3");
  EXPECT_LT(ranges["planned_peak_bytes"], whole["planned_peak_bytes"]);
  const std::string tight =
      " --budget " + std::to_string(ranges["planned_peak_bytes"].get<std::int64_t>());
  const Json chosen = result_of(plan + "--shard auto" + tight);
  EXPECT_EQ(chosen["shard"], 3);
  EXPECT_LE(chosen["planned_peak_bytes"], ranges["planned_peak_bytes"]);
}

// A run of several checkpoints, on another number of ranks each time.
TEST(CommandLineRanks, ResumesOnAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), task = gpt2 + "--eval-batches 0 ";
  const Json alone = result_of(task + "--steps 4")["losses"];
  int step = 0;
  for (const auto& [ranks, shard] : {std::pair{4, "3"}, {2, "2"}, {1, "0"}, {3, "1"}}) {
    const std::string here =
        step == 0 ? task + "--checkpoint " + at : "train --resume " + at + " --threads 1";
    const Json losses = result_of(launched(
        ranks, here + " --shard " + shard + " --steps " + std::to_string(step + 1)))["losses"];
    EXPECT_EQ(losses, Json{alone[static_cast<std::size_t>(step)]}) << ranks;
    ++step;
  }
}

// Starts a long run, does something to rank 1 of 3 once it has taken a step, and returns how it
// ended.
Outcome run_with_attack(const fs::path& folder, int signal, const std::string& launch_options = "",
                        const std::string& steps = "1000000") {
  const std::string mark = (folder / "run").string();
  Outcome outcome;
  std::thread attacker([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!fs::exists(folder / "run/checkpoint.safetensors")) continue;
      for (const pid_t process : processes_of(mark, "RANK=1")) kill(process, signal);
      return;
    }
  });
  outcome = run("launch -n 3 " + launch_options + " -- " + gpt2 + "--eval-batches 0 --steps " +
                steps + " --checkpoint-every 5 --checkpoint " + mark);
  attacker.join();
  return outcome;
}

TEST(CommandLineRanks, AKilledRankIsNamedByTheOthers) {
  const TemporaryFolder folder;
  const Outcome outcome = run_with_attack(folder.path(), SIGKILL);
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.output.find("rank 1 was lost in "), std::string::npos) << outcome.output;
  for (const char* rank : {"RANK=0", "RANK=1", "RANK=2"})
    EXPECT_TRUE(processes_of((folder / "run").string(), rank).empty()) << rank;
}

TEST(CommandLineRanks, RestartsGoOnFromTheCheckpoint) {
  const TemporaryFolder folder;
  const std::string end = "--eval-batches 0 --steps 60 ";
  const Outcome outcome = run_with_attack(folder.path(), SIGKILL, "--restarts 1", "60");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  const std::string again = (folder / "again").string();
  ASSERT_EQ(run(gpt2 + end + "--checkpoint " + again).code, 0);
  const auto text = [](const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  // The specification in the header differs by the number of checkpoints on the way; the tensors,
  // whose checksums are the file's end, do not. The last checksum is of the header.
  const std::string a = text(folder / "run/checkpoint.safetensors"),
                    b = text(again + "/checkpoint.safetensors");
  ASSERT_GT(a.size(), 1008u);
  EXPECT_EQ(a.substr(a.size() - 1008, 1000), b.substr(b.size() - 1008, 1000));
}

TEST(CommandLineRanks, RefusesRanksThatCannotBe) {
  expect_usage_error("train --workload mlp --shard 1 --steps 1", "one rank");
  expect_usage_error("train --workload mlp --leaves 2 --accumulate 2 --steps 1", "--accumulate");
  expect_usage_error("plan --workload mlp --ranks 4 --leaves 2", "--leaves 2");
  expect_usage_error("plan --workload mlp --ranks 2 --shard 4", "--shard");
  expect_usage_error("plan --workload reweight --ranks 2", "several levels");
  expect_usage_error("launch -n 2 -- eval --workload mlp", "only train");
  expect_usage_error("launch -n 2 --restarts 1 -- train --workload mlp --steps 1", "--checkpoint");
  const Outcome other = run("launch -n 2 -- train --workload mlp --batch 9 --steps 1");
  EXPECT_NE(other.output.find("9 items cannot be divided into 2 leaves"), std::string::npos)
      << other.output;
  EXPECT_EQ(other.code, 1);
}

}  // namespace
}  // namespace ebb::test
