// `ebb launch` and `ebb train` on several processes: bits, plans, failures and checkpoints.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support/command_line.h"
#include "support/last_json.h"
#include "support/other_device.h"
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

Json result_of(const std::string& arguments) {
  SCOPED_TRACE(arguments);
  return last_json(run(arguments + " --json"));
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
  double sent = 0.0, calls = 0.0;
  for (const Json& kind : plan["by_collective"])
    sent += kind["bytes_sent"].get<double>(), calls += kind["calls"].get<double>();
  EXPECT_EQ(sent, plan["bytes_sent_per_rank"]);
  EXPECT_EQ(calls, plan["collectives"]);
  for (int r = 0; r < 3; ++r) {
    const Json& rank = result["per_rank"][static_cast<std::size_t>(r)];
    EXPECT_EQ(rank["rank"], r);
    EXPECT_EQ(rank["planned_peak_bytes"], rank["measured_peak_bytes"]);
    EXPECT_EQ(rank["planned_peak_bytes"], result["per_rank"][0]["planned_peak_bytes"]);
    EXPECT_GT(rank["bytes_sent"], 0);
  }
}

// Which instruction waits for which exchange. On the CPU nothing hides an exchange; on a GPU
// backward does.
TEST(CommandLineRanks, APlanSaysWhatWaitsForWhat) {
  const std::string plan =
      "plan --workload gpt2 --layers 2 --width 64 --heads 2 --sequence 64 --vocabulary 512 "
      "--batch 4 --ranks 4 --shard ";
  for (const char* shard : {"0", "1", "3"}) {
    const Json result = result_of(plan + shard);
    EXPECT_EQ(result["exposed_link_ms"], result["predicted_link_ms"]);
    for (const auto& [name, kind] : result["by_collective"].items()) {
      EXPECT_EQ(kind["exposed_ms"], kind["predicted_ms"]) << name;
      double calls = 0.0;
      for (const Json& waiter : kind["waited_for_by"]) calls += waiter["calls"].get<double>();
      EXPECT_EQ(calls, kind["calls"]) << name;
    }
    // Updates wait for gradients.
    const Json& gradients =
        result["by_collective"][*shard == '0' ? "all_reduce" : "reduce_scatter"];
    EXPECT_EQ(gradients["waited_for_by"][0]["op"], "adam") << gradients;
  }
  const Outcome text = run(plan + "0");
  EXPECT_NE(text.output.find("adam waits for "), std::string::npos) << text.output;
  EXPECT_NE(text.output.find(" at \"transformer.wte"), std::string::npos) << text.output;
  if (!built_with_cuda()) return;
  const Json gpu = result_of(plan + "0 --device '" EBB_SOURCE_FOLDER "/devices/nvidia-h200.json'");
  EXPECT_LT(gpu["exposed_link_ms"], gpu["predicted_link_ms"]);
  EXPECT_GT(gpu["exposed_link_ms"], 0.0);
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
  EXPECT_NE(text("summary.html").find("\"waited_ms\""), std::string::npos);
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

// A run with several checkpoints, resumed on a different number of ranks each time.
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

// Every hypergradient product is a sum over all ranks.
TEST(CommandLineRanks, SeveralLevels) {
  const std::string task =
      "train --workload reweight --hidden 8 --batch 12 --leaves 4 --threads 1 --steps 3 "
      "--eval-batches 1 --method ";
  for (const char* method : {"darts", "cg"}) {
    const Json alone = result_of(task + method), shared = result_of(launched(3, task + method));
    EXPECT_EQ(shared["losses"], alone["losses"]) << method;
    EXPECT_EQ(shared["eval_loss"], alone["eval_loss"]) << method;
    ASSERT_EQ(shared["per_rank"].size(), 3u);
    const Json plan = result_of("plan --workload reweight --hidden 8 --batch 12 --leaves 4 " +
                                std::string("--ranks 3 --method ") + method);
    EXPECT_EQ(plan["bytes_sent_per_rank"], shared["bytes_sent_per_rank"]);
    for (const Json& rank : shared["per_rank"]) {
      EXPECT_EQ(rank["planned_peak_bytes"], rank["measured_peak_bytes"]) << rank;
      EXPECT_GT(rank["bytes_sent"], 0);
    }
  }
}

TEST(CommandLineRanks, SeveralLevelsResumeOnAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(),
                    task =
                        "train --workload reweight --hidden 8 --batch 12 --leaves 4 --threads 1 "
                        "--method unrolled --classifier.unroll 2 --eval-batches 0 ";
  const Json alone = result_of(task + "--steps 4")["losses"];
  int step = 0;
  for (const int ranks : {3, 1, 4, 2}) {
    const std::string here =
        step == 0 ? task + "--checkpoint " + at : "train --resume " + at + " --threads 1";
    const Json losses =
        result_of(launched(ranks, here + " --steps " + std::to_string(step + 1)))["losses"];
    EXPECT_EQ(losses, Json{alone[static_cast<std::size_t>(step)]}) << ranks;
    ++step;
  }
}

// All ranks write: the file has the bytes that one process writes.
TEST(CommandLineRanks, ACheckpointIsThatOfOneProcess) {
  const TemporaryFolder folder;
  const auto tensors = [&](const std::string& name) {
    std::ifstream in(folder / name / "checkpoint.safetensors", std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(in), {}};
    std::uint64_t header = 0;
    std::memcpy(&header, all.data(), sizeof header);
    // The header contains options of the run; its checksum is the end of the file.
    return all.substr(8 + header, all.size() - 16 - header);
  };
  const auto keep = [&](int ranks, const std::string& name, const std::string& options) {
    const std::string command =
        gpt2 + "--eval-batches 0 --steps 2 --checkpoint " + (folder / name).string() + options;
    EXPECT_EQ(run(launched(ranks, command)).code, 0);
  };
  keep(1, "alone", "");
  for (const char* shard : {"0", "1", "3"}) {
    const std::string name = std::string("shard") + shard;
    keep(3, name, std::string(" --shard ") + shard);
    EXPECT_EQ(tensors(name), tensors("alone")) << shard;
  }
}

// All ranks learn that a rank cannot write; the previous checkpoint stays, and the run continues.
TEST(CommandLineRanks, AFullDiskLeavesTheLastCheckpoint) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), file = at + "/checkpoint.safetensors";
  ASSERT_EQ(run(launched(2, gpt2 + "--eval-batches 0 --steps 2 --checkpoint " + at)).code, 0);
  std::ifstream before(file, std::ios::binary);
  const std::string kept{std::istreambuf_iterator<char>(before), {}};
  // No file of any rank may grow beyond half of the checkpoint: write() then fails as on a full
  // disk.
  struct rlimit usual {};
  getrlimit(RLIMIT_FSIZE, &usual);
  struct rlimit small = usual;
  small.rlim_cur = kept.size() / 2;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const Outcome full = run(launched(
      2, "train --resume " + at + " --threads 1 --steps 4 --checkpoint-every 1 --shard 1"));
  setrlimit(RLIMIT_FSIZE, &usual);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(full.code, 1) << full.output;
  EXPECT_NE(full.output.find("cannot write"), std::string::npos) << full.output;
  std::ifstream after(file, std::ios::binary);
  EXPECT_TRUE(kept == std::string(std::istreambuf_iterator<char>(after), {}));
  for (const auto& entry : fs::directory_iterator(at))
    EXPECT_FALSE(entry.path().extension() == ".tmp") << entry.path();
}

// Starts a long run, harms rank 1 of 3 once it has taken a step, and returns how the run ended.
Outcome run_with_attack(const fs::path& folder, int signal, const std::string& launch_options = "",
                        const std::string& steps = "1000000", const std::string& task = gpt2) {
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
  outcome = run("launch -n 3 " + launch_options + " -- " + task + "--eval-batches 0 --steps " +
                steps + " --checkpoint-every 5 --checkpoint " + mark);
  attacker.join();
  return outcome;
}

TEST(CommandLineRanks, AKilledRankIsNamedByTheOthers) {
  std::string wide = gpt2;
  wide.replace(wide.find("--width 16"), 10, "--width 128");
  for (const std::string& task : {gpt2, wide}) {  // short messages, and long ones
    const TemporaryFolder folder;
    const Outcome outcome = run_with_attack(folder.path(), SIGKILL, "", "1000000", task);
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(outcome.output.find("rank 1 was lost in "), std::string::npos) << outcome.output;
    for (const char* rank : {"RANK=0", "RANK=1", "RANK=2"})
      EXPECT_TRUE(processes_of((folder / "run").string(), rank).empty()) << rank;
  }
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

// The job is started again after its end; all ranks have parts of the model that it still saves.
TEST(CommandLineRanks, ACompleteRunIsASuccess) {
  const TemporaryFolder folder;
  const std::string job = launched(2, gpt2 +
                                          "--eval-batches 0 --steps 2 --shard 3 --resume auto "
                                          "--checkpoint " +
                                          (folder / "run").string());
  ASSERT_EQ(run(job).code, 0);
  const Outcome again = run(job + " --save " + (folder / "model").string());
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("only its model was saved again"), std::string::npos) << again.output;
  EXPECT_TRUE(fs::exists(folder / "model/model.safetensors"));
}

// After a signal to one rank, all ranks finish the step and write a checkpoint; the exit code lets
// Slurm requeue the job.
TEST(CommandLineRanks, AnAnnouncedEndIsKept) {
  const TemporaryFolder folder;
  const Outcome outcome = run_with_attack(folder.path(), SIGUSR1);
  EXPECT_EQ(outcome.code, 128 + SIGUSR1) << outcome.output;
  EXPECT_NE(outcome.output.find("continue with --resume"), std::string::npos) << outcome.output;
}

// ebb launch passes the end of its terminal on, and ends after its ranks.
// Where the newest checkpoint cannot be a hard link, the leading rank writes it twice.
TEST(CommandLineRanks, ShardedCheckpointsThroughASymbolicLink) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run");
  std::filesystem::create_directories(folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere" / "x.safetensors",
                                  folder / "run" / "checkpoint.safetensors");
  const Outcome outcome =
      run("launch -n 2 --in-process -- train --workload mlp --steps 4 --shard 3 --optimizer adamw "
          "--keep 2 --checkpoint-every 2 --eval-batches 1 --checkpoint " +
          (folder / "run").string());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
}

// Only the leading rank evaluates; the others learn that it refuses the test loss.
TEST(CommandLineRanks, ATestLossThatIsNotFiniteIsReportedOnce) {
  const Outcome outcome =
      run("launch -n 2 -- train --workload lm --batch 4 --optimizer sgd --eval-batches 1 --steps 1 "
          "--lr 3e38");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("the test loss is"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("was lost"), std::string::npos) << outcome.output;
}

TEST(CommandLineRanks, AClosedTerminalIsPassedOn) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  const auto usual = signal(SIGHUP, SIG_DFL);  // these tests may have been started by nohup
  const Outcome outcome =
      run("launch -n 2 -- " + gpt2 +
          "--eval-batches 0 --steps 1000000 --checkpoint-every 5 --checkpoint " + at +
          " 2>&1 & p=$!; while [ ! -f " + at +
          "/checkpoint.safetensors ] && kill -0 $p 2>/dev/null; do sleep 0.02; done; " +
          "kill -HUP $p; wait $p; code=$?; echo the launcher is gone; exit $code");
  signal(SIGHUP, usual);
  EXPECT_EQ(outcome.code, 128 + SIGHUP) << outcome.output;
  EXPECT_LT(outcome.output.find("continue with --resume"),
            outcome.output.find("the launcher is gone"))
      << outcome.output;
}

TEST(CommandLineRanks, RefusesRanksThatCannotBe) {
  expect_usage_error("train --workload mlp --shard 1 --steps 1", "one rank");
  expect_usage_error("train --workload mlp --leaves 2 --accumulate 2 --steps 1", "--accumulate");
  expect_usage_error("plan --workload mlp --ranks 4 --leaves 2", "--leaves 2");
  expect_usage_error("plan --workload mlp --ranks 2 --shard 4", "--shard");
  expect_usage_error("plan --workload reweight --ranks 2 --shard 1", "hypergradients read");
  expect_usage_error("launch -n 2 -- eval --workload mlp", "only train");
  expect_usage_error("launch -n 2 --restarts 1 -- train --workload mlp --steps 1", "--checkpoint");
  const Outcome other = run("launch -n 2 -- train --workload mlp --batch 9 --steps 1");
  EXPECT_NE(other.output.find("9 items cannot be divided into 2 leaves"), std::string::npos)
      << other.output;
  EXPECT_EQ(other.code, 1);
}

}  // namespace
}  // namespace ebb::test
