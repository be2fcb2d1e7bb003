// `ebb train` and `ebb eval` as a user meets them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/other_device.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using Json = nlohmann::json;

const std::string tiny =
    "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 61 "
    "--dropout 0.1 ";

// The last line of standard output.
Json result_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json 2>/dev/null");
  EXPECT_EQ(outcome.code, 0) << arguments;
  const std::size_t end = outcome.output.find_last_not_of('\n'),
                    begin = outcome.output.rfind('\n', end);
  return Json::parse(
      outcome.output.substr(begin == std::string::npos ? 0 : begin + 1, end - begin));
}

TEST(CommandLineTrain, TellsWhatItTook) {
  for (const char* workload :
       {"lm --batch 8", "mlp --batch 8",
        "llama --layers 1 --width 16 --heads 2 --hidden 16 --sequence 8 --vocabulary 30",
        "bert --layers 1 --width 16 --heads 2 --sequence 8 --vocabulary 64 --batch 4",
        "resnet --batch 4"}) {
    const Json r =
        result_of(std::string("train --eval-batches 1 --steps 2 --workload ") + workload);
    for (const char* key : {"workload", "device", "params", "batch", "steps", "losses", "step_ms",
                            "planned_peak_bytes", "measured_peak_bytes", "peak_by_category",
                            "fixed_bytes", "plan_ms", "eval_loss"})
      EXPECT_TRUE(r.contains(key)) << workload << ": " << key;
    for (const char* key : {"weights", "gradients", "optimizer", "activations", "workspace"})
      EXPECT_TRUE(r["peak_by_category"].contains(key)) << key;
    EXPECT_EQ(r["losses"].size(), 2u);
    EXPECT_LE(r["measured_peak_bytes"], r["planned_peak_bytes"]) << workload;
    // Pages that no kernel of so small a step touches are few.
    EXPECT_GE(r["measured_peak_bytes"].get<double>(), 0.8 * r["planned_peak_bytes"].get<double>())
        << workload;
  }
}

// Tracing and planning take time: the traced and planned step is the one that runs.
TEST(CommandLineTrain, TracesAStepOnce) {
  const std::string common =
      "train --workload mlp --hidden 16 --batch 8 --steps 1 --eval-batches 1 ";
  EXPECT_EQ(result_of(common)["traced_steps"], 1);
  EXPECT_EQ(result_of(common + "--accumulate 2")["traced_steps"], 1);
  EXPECT_EQ(result_of(common + "--budget 30MiB")["traced_steps"], 1);
  EXPECT_EQ(result_of(common + "--budget 1GiB --whole-process")["traced_steps"], 1);
  EXPECT_EQ(result_of(common + "--accumulate auto")["traced_steps"], 4);  // 1, 2, 4 and 8 parts
  // The least budget is found on one graph, and planned with on another.
  EXPECT_EQ(result_of(common + "--budget least")["traced_steps"], 2);
}

// If a GPU can be used, --device cuda uses it; the other tests of devices then cover it.
TEST(CommandLineTrain, WithoutAGpuItSaysSoAndRunsOnTheCpu) {
  if (cuda_present()) GTEST_SKIP() << "there is a GPU";
  const TemporaryFolder folder;
  for (const std::string& command :
       {tiny + "--steps 1", std::string("plan --workload mlp"),
        "ablate --workload mlp --techniques fp16 --runs 1 --steps 1 --out " +
            (folder / "study").string()}) {
    const Outcome outcome = run(command + " --device cuda");
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.output.find("cuda:0 is not available"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("running on the CPU"), std::string::npos) << outcome.output;
  }
  expect_failure("probe --device cuda", 1, "cuda:0 is not available");
}

TEST(CommandLineTrain, ResumesToTheBit) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  const Json whole = result_of(tiny + "--steps 6"),
             first = result_of(tiny + "--steps 6 --checkpoint-every 2 --checkpoint " + at);
  EXPECT_EQ(whole["losses"], first["losses"]);
  std::filesystem::remove_all(at);
  EXPECT_EQ(run(tiny + "--steps 3 --checkpoint " + at).code, 0);
  const Json rest = result_of(tiny + "--steps 6 --resume " + at);
  EXPECT_EQ(rest["losses"], (Json{whole["losses"][3], whole["losses"][4], whole["losses"][5]}));
  expect_failure(tiny + "--steps 6 --resume " + at, 2, "leaves nothing to do");
  expect_failure("train --workload lm --steps 6 --resume " + at, 2, "checkpoint.safetensors");
  expect_failure(tiny + "--steps 9 --batch 3 --resume " + at, 2, "batch");
  expect_failure(tiny + "--steps 9 --seed 5 --resume " + at, 2, "seed");
}

TEST(CommandLineTrain, SavesFoldersThatEvalReads) {
  const TemporaryFolder folder;
  const std::string model = (folder / "model").string();
  EXPECT_EQ(run(tiny + "--steps 2 --save " + model).code, 0);
  const std::string tokens = EBB_GOLDEN_FOLDER "/models/tokens.bin";
  const Json r = result_of("eval --model " + model + " --tokens " + tokens);
  EXPECT_EQ(r["tokens"], 399);  // every token but the first is predicted
  EXPECT_GT(r["loss"], 3.0);
  EXPECT_LT(r["loss"], 6.0);
  EXPECT_NEAR(
      result_of("eval --batch 5 --model " + model + " --tokens " + tokens)["loss"].get<double>(),
      r["loss"].get<double>(), 1e-5);
  // Keys and values in 8 bits change the loss a little, whatever the batch is.
  const auto rounded = [&](const std::string& options) {
    return result_of("eval --cache-bits 8 --model " + model + " --tokens " + tokens +
                     options)["loss"]
        .get<double>();
  };
  EXPECT_NE(rounded(""), r["loss"].get<double>());
  EXPECT_NEAR(rounded(""), r["loss"].get<double>(), 0.01);
  EXPECT_NEAR(rounded(" --batch 5"), rounded(""), 1e-5);
  expect_usage_error("train --workload mlp --steps 1 --save " + model,
                     "cannot be written as a Hugging Face folder");
}

TEST(CommandLineTrain, WritesLogs) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(tiny + "--steps 3 --log " + (folder / "log").string()).code, 0);
  std::ifstream lines(folder / "log" / "log.jsonl");
  int losses = 0;
  for (std::string line; std::getline(lines, line);) losses += Json::parse(line)["tag"] == "loss";
  EXPECT_EQ(losses, 3);
}

TEST(CommandLineTrain, BadInputIsOneLine) {
  const TemporaryFolder folder;
  const std::string empty = folder.write("empty.bin", "").string(),
                    three = folder.write("three.bin", "abc").string();
  const std::string text = folder.write("text.csv", "1,\"unclosed\n").string();
  expect_usage_error("train --workload chess", "chess");
  expect_usage_error("train --steps 0", "--steps");
  expect_usage_error("train --steps many", "--steps");
  expect_usage_error("train --batch -1", "--batch");
  expect_usage_error("train --dropout 1.5", "--dropout");
  expect_usage_error("train --device tpu", "tpu");
  expect_usage_error("train --data /no/such/file", "/no/such/file");
  expect_usage_error("train --resume /no/such/folder", "/no/such/folder");
  expect_usage_error("train --schedule zigzag", "zigzag");
  expect_usage_error("train --checkpoint-every 3", "--checkpoint");
  expect_usage_error("eval --tokens " + three, "--model");
  expect_failure(
      "train --workload gpt2 --width 10 --heads 3 --layers 1 --sequence 8 --vocabulary 20", 1,
      "3 heads");
  expect_failure("train --workload resnet --depth 7", 1, "18, 32 or 50");
  expect_failure("train --workload gpt2 --data " + empty, 1, "empty.bin");
  expect_failure("train --workload gpt2 --data " + three, 1, "three.bin");
  expect_failure("train --workload bert --data " + text, 1, "text.csv");
  expect_failure("train --workload resnet --data " + folder.path().string(), 1,
                 folder.path().string());
  expect_failure("train --workload lm --data " + folder.path().string(), 1, "train.txt");
  expect_failure("train --resume " + folder.path().string(), 1, "checkpoint.safetensors");
  expect_failure("eval --model " + folder.path().string() + " --tokens " + three, 1, "config.json");
  expect_failure("eval --model " EBB_GOLDEN_FOLDER "/models/bert --tokens " + three, 1,
                 "next token");
  expect_failure("eval --model " EBB_GOLDEN_FOLDER "/models/gpt2 --tokens " + three, 1,
                 "three.bin");
  expect_failure("eval --model " EBB_GOLDEN_FOLDER "/models/gpt2 --tokens " + empty, 1,
                 "empty.bin");
}

}  // namespace
}  // namespace ebb::test
