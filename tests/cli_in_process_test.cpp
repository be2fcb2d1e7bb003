// `ebb launch --in-process`: ranks that are threads of one process.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support/command_line.h"
#include "support/last_json.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string
    gpt2 =
        "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 61 "
        "--dropout 0.1 --clip 1 --batch 8 --leaves 4 --threads 1 --eval-batches 1 ",
    reweight =
        "train --workload reweight --hidden 8 --batch 12 --leaves 4 --threads 1 --steps 3 "
        "--eval-batches 1 --method cg ";

std::string on_threads(int ranks, const std::string& command) {
  return "launch --in-process -n " + std::to_string(ranks) + " -- " + command;
}

TEST(CommandLineInProcess, ThreadsGiveTheBitsOfOneRank) {
  const Json alone = last_json(run(gpt2 + "--steps 3 --json"));
  const Json one = last_json(run(on_threads(1, gpt2 + "--steps 3 --json")));
  EXPECT_EQ(one["losses"], alone["losses"]);
  EXPECT_FALSE(one.contains("per_rank"));
  for (const auto& [ranks, shard] : {std::pair{2, "0"}, {3, "1"}, {4, "3"}}) {
    SCOPED_TRACE(ranks);
    const Json shared =
        last_json(run(on_threads(ranks, gpt2 + "--steps 3 --json --shard " + shard)));
    EXPECT_EQ(shared["losses"], alone["losses"]);
    EXPECT_EQ(shared["eval_loss"], alone["eval_loss"]);
    ASSERT_EQ(shared["per_rank"].size(), static_cast<std::size_t>(ranks));
    for (const Json& rank : shared["per_rank"]) {
      EXPECT_EQ(rank["transport"], "threads");
      EXPECT_EQ(rank["planned_peak_bytes"], rank["measured_peak_bytes"]);
      EXPECT_GT(rank["bytes_sent"], 0);
    }
  }
}

TEST(CommandLineInProcess, SeveralLevels) {
  const Json alone = last_json(run(reweight + "--json")),
             shared = last_json(run(on_threads(3, reweight + "--json")));
  EXPECT_EQ(shared["losses"], alone["losses"]);
  EXPECT_EQ(shared["eval_loss"], alone["eval_loss"]);
}

// Checkpoints are the same, whatever ranks are.
TEST(CommandLineInProcess, GoesOnAsProcesses) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  const Json alone = last_json(run(gpt2 + "--steps 4 --json"))["losses"];
  const Json first = last_json(
      run(on_threads(3, gpt2 + "--steps 2 --shard 1 --json --checkpoint " + at)))["losses"];
  const Json second =
      last_json(run("launch -n 2 -- train --threads 1 --steps 4 --json --resume " + at))["losses"];
  EXPECT_EQ(first, (Json{alone[0], alone[1]}));
  EXPECT_EQ(second, (Json{alone[2], alone[3]}));
}

TEST(CommandLineInProcess, AnAnnouncedEndIsKept) {
  const TemporaryFolder folder;
  const std::string mark = (folder / "run").string();
  std::thread attacker([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!std::filesystem::exists(folder / "run/checkpoint.safetensors")) continue;
      for (const pid_t process : processes_of(mark, "MARKED=1")) kill(process, SIGTERM);
      return;
    }
  });
  const Outcome outcome = run_command(
      "MARKED=1 exec '" + program() + "' " +
      on_threads(3, gpt2 + "--steps 1000000 --checkpoint-every 5 --checkpoint " + mark));
  attacker.join();
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_NE(outcome.output.find("continue with --resume"), std::string::npos) << outcome.output;
}

TEST(CommandLineInProcess, RefusesWhatThreadsCannotDo) {
  expect_usage_error("launch -n 2 --in-process --restarts 1 -- train --workload mlp --steps 1",
                     "--restarts");
  expect_usage_error("launch -n 2 --in-process -- eval --workload mlp", "only train");
  expect_usage_error("launch -n 2 --in-process -- train --workload mlp --steps 1 --leaves 1",
                     "--leaves 1");
  expect_usage_error("launch -n 2 --in-process -- train --workload mlp --steps 1 --pin-threads",
                     "--pin-threads");
  // An error of all ranks, and no rank that waits for another.
  const Outcome other = run("launch -n 2 --in-process -- train --workload mlp --batch 9 --steps 1");
  EXPECT_NE(other.output.find("9 items cannot be divided into 2 leaves"), std::string::npos)
      << other.output;
  EXPECT_EQ(other.code, 1);
}

}  // namespace
}  // namespace ebb::test
