// `ebb train` stopped, resumed, and resumed with other options.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ebb/io/checkpoint.h"
#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string tiny =
    "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 61 "
    "--dropout 0.1 --eval-batches 0 ";

// The losses in the JSON on the last line.
Json losses_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  const std::size_t begin = outcome.output.rfind("\n{");
  if (outcome.code != 0 || begin == std::string::npos) return {};
  return Json::parse(outcome.output.substr(begin + 1))["losses"];
}

std::int64_t step_of(const fs::path& folder) {
  return io::read_summary(folder / "checkpoint.safetensors").step;
}

TEST(CommandLineResume, NothingNeedsToBeTypedAgain) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(),
                    unusual = tiny +
                              "--optimizer sgd --lr 0.05 --clip 0.5 --accumulate 2 --batch 5 "
                              "--seed 18446744073709551615 --budget 400MiB ";
  const Json whole = losses_of(unusual + "--steps 4");
  ASSERT_EQ(run(unusual + "--steps 2 --checkpoint " + at).code, 0);
  EXPECT_EQ(losses_of("train --steps 4 --resume " + at), (Json{whole[2], whole[3]}));
  // All options are given again with the same values.
  EXPECT_EQ(losses_of(unusual + "--steps 5 --resume " + at).size(), 1u);
  // A default given explicitly is the same value.
  EXPECT_EQ(losses_of("train --layers 1 --schedule constant --steps 6 --resume " + at).size(), 1u);
  expect_usage_error("train --resume " + at, "leaves nothing to do");
}

// The machine that a run is resumed on may have less memory.
TEST(CommandLineResume, OvercommitIsForOneStart) {
  const TemporaryFolder folder;
  const auto overcommits = [&](const std::string& command) {
    losses_of(command);
    const io::Notes notes = io::read_summary(folder / "checkpoint.safetensors").notes;
    return Json::parse(notes.at("spec"))["overcommit"];
  };
  const std::string at = folder.path().string();
  EXPECT_EQ(overcommits(tiny + "--steps 1 --overcommit --checkpoint " + at), true);
  EXPECT_EQ(overcommits("train --steps 2 --resume " + at), false);
  EXPECT_EQ(overcommits("train --steps 3 --overcommit --resume " + at), true);
}

// What a checkpoint says of a perceptron of one layer, which has no hidden sizes.
TEST(CommandLineResume, APerceptronOfOneLayer) {
  const TemporaryFolder folder;
  for (const std::string workload : {"mlp", "reweight"}) {
    const std::string at = (folder / workload).string();
    ASSERT_EQ(run("train --workload " + workload +
                  " --layers 1 --batch 4 --eval-batches 0 --steps 2 --checkpoint " + at)
                  .code,
              0);
    EXPECT_EQ(losses_of("train --steps 3 --resume " + at).size(), 1u) << workload;
  }
  const Outcome exported = run("export --checkpoint " + (folder / "mlp").string() + " --onnx " +
                               (folder / "mlp.onnx").string());
  EXPECT_EQ(exported.code, 0) << exported.output;
}

TEST(CommandLineResume, EachDifferenceIsToldAndRefused) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  ASSERT_EQ(run(tiny + "--steps 2 --checkpoint " + at).code, 0);
  for (const auto& [given, name] : {std::pair{"--lr 0.5", "lr"},
                                    {"--optimizer lion", "optimizer"},
                                    {"--optimizer sgd", "lr"},
                                    {"--schedule cosine", "schedule"},
                                    {"--warmup 3", "warmup"},
                                    {"--dropout 0.2", "dropout"},
                                    {"--heads 4", "heads"},
                                    {"--layers 2", "layers"},
                                    {"--width 32", "width"},
                                    {"--sequence 8", "sequence"},
                                    {"--vocabulary 50", "vocabulary"},
                                    {"--batch 3", "batch"},
                                    {"--seed 1", "seed"},
                                    {"--precision bf16", "precision"},
                                    {"--clip 1", "clip"},
                                    {"--accumulate 2", "accumulate"},
                                    {"--workload lm", "workload"}})
    expect_usage_error("train --steps 4 --resume " + at + " " + given, name);
  // Bytes have 256 tokens, so the vocabulary in the checkpoint cannot apply to them; but the change
  // that the user made, and that the error names, is the data.
  std::ofstream(folder / "other.txt") << std::string(4000, 'x');
  expect_usage_error(
      "train --steps 4 --resume " + at + " --data " + (folder / "other.txt").string(),
      "data was (file other.txt) not there");
  const Outcome both = run("train --steps 4 --lr 0.5 --dropout 0.2 --resume " + at);
  EXPECT_NE(both.output.find("lr was 0.0003 and is now 0.5"), std::string::npos) << both.output;
  EXPECT_NE(both.output.find("dropout was 0.1 and is now 0.2"), std::string::npos) << both.output;
  EXPECT_NE(both.output.find("--change dropout,lr"), std::string::npos) << both.output;
  // Options that change no bit may differ.
  EXPECT_EQ(run("train --steps 3 --budget 500MiB --recompute blocks --threads 1 --eval-batches 0 "
                "--resume " +
                at)
                .code,
            0);
  EXPECT_EQ(step_of(at), 3);
}

TEST(CommandLineResume, ChangesAreAskedForByName) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), on = "train --resume " + at + " ";
  ASSERT_EQ(run(tiny + "--steps 2 --schedule cosine --checkpoint " + at).code, 0);
  expect_usage_error(on + "--steps 4", "steps");  // the schedule depends on them
  expect_usage_error(on + "--steps 4 --change lr", "--change steps");
  expect_usage_error(on + "--steps 4 --change stepz", "stepz");
  expect_usage_error(on + "--steps 4 --change seed", "--change seed");
  expect_usage_error(tiny + "--steps 4 --change lr", "--resume");
  EXPECT_EQ(losses_of(on + "--steps 4 --change steps").size(), 2u);
  EXPECT_EQ(losses_of(on + "--steps 6 --lr 0.1 --change steps,lr").size(), 2u);
  EXPECT_EQ(losses_of(on + "--steps 7 --batch 2 --change batch --change steps").size(), 1u);
  EXPECT_EQ(
      losses_of(on + "--steps 8 --optimizer lion --lr 1e-4 --change optimizer,steps,lr").size(),
      1u);
  EXPECT_EQ(losses_of(on + "--steps 9 --precision fp16 --change precision,steps").size(), 1u);
  expect_failure(on + "--steps 12 --width 32 --change width,steps", 1, "(16, 48)");
}

// What a checkpoint says of a level that is trained alone, which has no method.
TEST(CommandLineResume, ALevelAlone) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  ASSERT_EQ(run("train --workload reweight --hidden 8 --batch 4 --unweighted --eval-batches 0 "
                "--steps 2 --checkpoint " +
                at)
                .code,
            0);
  EXPECT_EQ(losses_of("train --steps 3 --resume " + at).size(), 1u);
}

TEST(CommandLineResume, DataIsKnownByItsContent) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i * i % 7);
  const std::string data = folder.write("text.txt", text).string(), at = (folder / "run").string();
  const std::string command =
      "train --workload lm --batch 4 --eval-batches 0 --data " + data + " --steps ";
  ASSERT_EQ(run(command + "2 --checkpoint " + at).code, 0);
  text[1500] = '!';
  folder.write("text.txt", text);
  expect_usage_error("train --steps 4 --resume " + at, "--change data");
  EXPECT_EQ(run("train --steps 3 --change data --resume " + at).code, 0);
  fs::rename(data, folder / "moved.txt");
  expect_failure("train --steps 4 --resume " + at, 1, "text.txt");
}

TEST(CommandLineResume, AnotherRunsFolderIsNotWrittenTo) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string();
  ASSERT_EQ(run(tiny + "--steps 1 --resume auto --checkpoint " + at).code, 0);
  expect_usage_error(tiny + "--steps 1 --checkpoint " + at, "--resume auto");
  ASSERT_EQ(run(tiny + "--steps 3 --resume auto --checkpoint " + at).code, 0);
  EXPECT_EQ(step_of(at), 3);
  expect_usage_error(tiny + "--resume auto", "--checkpoint");
}

// A job that a queue starts again must not seem to have failed, and must not lose its model.
TEST(CommandLineResume, ACompleteRunIsASuccess) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), model = (folder / "model").string(),
                    job = tiny + "--steps 2 --resume auto --checkpoint " + at;
  ASSERT_EQ(run(job).code, 0);
  const auto written = fs::last_write_time(at + "/checkpoint.safetensors");
  const Outcome again = run(job);
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.output.find("ebb: the run in " + at + " is complete, with 2 steps"), 0u)
      << again.output;
  EXPECT_EQ(losses_of(job), Json::array());
  EXPECT_EQ(run(job + " --save " + model).code, 0);
  EXPECT_TRUE(fs::exists(model + "/model.safetensors"));
  EXPECT_EQ(fs::last_write_time(at + "/checkpoint.safetensors"), written);
  expect_usage_error(job + " --lr 0.5", "lr was");
  expect_usage_error("train --resume " + at, "leaves nothing to do");
}

TEST(CommandLineResume, KeepsTheLastAndTheBest) {
  const TemporaryFolder folder;
  const fs::path at = folder / "run";
  ASSERT_EQ(run(tiny + "--steps 7 --keep 2 --checkpoint-every 2 --checkpoint " + at.string()).code,
            0);
  EXPECT_FALSE(fs::exists(at / "step-00000002.safetensors"));
  EXPECT_FALSE(fs::exists(at / "step-00000004.safetensors"));
  EXPECT_EQ(io::read_summary(at / "step-00000006.safetensors").step, 6);
  EXPECT_EQ(io::read_summary(at / "step-00000007.safetensors").step, 7);
  EXPECT_EQ(step_of(at), 7);
  EXPECT_TRUE(fs::equivalent(at / "checkpoint.safetensors", at / "step-00000007.safetensors"));
  const io::CheckpointSummary best = io::read_summary(at / "best.safetensors");
  for (const char* name : {"step-00000006.safetensors", "step-00000007.safetensors"})
    EXPECT_LE(std::stod(best.notes.at("loss")),
              std::stod(io::read_summary(at / name).notes.at("loss")));
  int files = 0;
  for (const auto& entry : fs::directory_iterator(at)) ++files, (void)entry;
  EXPECT_EQ(files, 4);
}

// Whatever a killed process has left, `--resume` finds the checkpoint of the latest step.
TEST(CommandLineResume, TheLatestCheckpointNeedsNoName) {
  const TemporaryFolder folder;
  const fs::path at = folder / "run", newest = at / "checkpoint.safetensors",
                 best = at / "best.safetensors";
  const auto step_file = [&](int step) {
    return at / ("step-0000000" + std::to_string(step) + ".safetensors");
  };
  const auto resumed = [&](int steps) {
    return losses_of("train --steps " + std::to_string(steps) + " --resume auto --checkpoint " +
                     at.string())
        .size();
  };
  ASSERT_EQ(run(tiny + "--steps 4 --keep 3 --checkpoint-every 2 --checkpoint " + at.string()).code,
            0);
  fs::remove(newest);
  expect_usage_error(tiny + "--checkpoint " + at.string(), "--resume auto");
  EXPECT_EQ(resumed(5), 1u);
  EXPECT_EQ(step_of(at), 5);
  // Killed before the file of step 5 got its second name.
  fs::remove(newest);
  fs::copy(step_file(2), newest);
  EXPECT_EQ(resumed(6), 1u);
  // Only the best was kept before the end.
  for (const fs::path& file : {step_file(4), step_file(5), step_file(6), newest}) fs::remove(file);
  const auto step = static_cast<int>(io::read_summary(best).step);
  EXPECT_EQ(resumed(step + 1), 1u);
}

TEST(CommandLineResume, ADamagedCheckpointIsNotPassedOverSilently) {
  const TemporaryFolder folder;
  const fs::path at = folder / "run", newest = at / "checkpoint.safetensors",
                 last = at / "step-00000004.safetensors";
  ASSERT_EQ(run(tiny + "--steps 4 --keep 2 --checkpoint-every 2 --checkpoint " + at.string()).code,
            0);
  std::ifstream in(last, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof header);
  for (const std::size_t place : {std::size_t{100}, std::size_t{8 + header + 1}}) {
    std::string damaged = whole;
    damaged[place] ^= 1;  // in the header, and in a tensor
    std::ofstream(last, std::ios::binary) << damaged;
    expect_failure("train --steps 5 --resume " + at.string(), 1,
                   "; step-00000002.safetensors is intact: to continue from it, move "
                   "checkpoint.safetensors and step-00000004.safetensors out of the folder");
  }
  fs::remove(newest), fs::remove(last);
  EXPECT_EQ(losses_of("train --steps 5 --resume " + at.string()).size(), 3u);
}

// By the training loss of the steps before it, though the run evaluates at its end.
TEST(CommandLineResume, TheBestIsTheOneOfTheLowestTrainingLoss) {
  const TemporaryFolder folder;
  const fs::path at = folder / "run";
  const Json losses = losses_of(
      "train --workload lm --batch 4 --eval-batches 2 --steps 7 --lr 0.05 --keep 2 "
      "--checkpoint-every 2 --checkpoint " +
      at.string());
  ASSERT_EQ(losses.size(), 7u);
  std::map<double, std::int64_t> step_by_loss;
  for (const auto& [begin, end] : {std::pair{0, 2}, {2, 4}, {4, 6}, {6, 7}}) {
    double sum = 0.0;
    for (int i = begin; i < end; ++i) sum += losses[i].get<double>();
    step_by_loss[sum / (end - begin)] = end;
  }
  const io::CheckpointSummary best = io::read_summary(at / "best.safetensors");
  EXPECT_EQ(best.step, step_by_loss.begin()->second);
  // The losses that are told have nine digits.
  EXPECT_NEAR(std::stod(best.notes.at("loss")), step_by_loss.begin()->first, 1e-7);
}

TEST(CommandLineResume, SeveralLevels) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(),
                    command =
                        "train --workload reweight --batch 4 --hidden 8 --eval-batches 0 "
                        "--classifier.lr 0.02 --method cg --classifier.iterations 2 ";
  const Json whole = losses_of(command + "--steps 5");
  ASSERT_EQ(run(command + "--steps 3 --checkpoint " + at).code, 0);
  EXPECT_EQ(losses_of("train --steps 5 --resume " + at), (Json{whole[3], whole[4]}));
  for (const auto& [given, name] :
       {std::pair{"--classifier.lr 0.5", "classifier.lr was 0.02 and is now 0.5"},
        {"--reweight.optimizer sgd", "reweight.optimizer"},
        {"--method darts", "classifier.method"},
        {"--classifier.unroll 3", "classifier.unroll"},
        {"--imbalance 50", "imbalance"},
        {"--meta 500", "meta"},
        {"--batch 5", "batch"},
        {"--hidden 9", "hidden"},
        {"--seed 2", "seed"},
        {"--classifier.precision bf16", "classifier.precision"},
        {"--precision bf16", "classifier.precision"}})
    expect_usage_error("train --steps 7 --resume " + at + " " + given, name);
  EXPECT_EQ(
      losses_of("train --steps 6 --classifier.lr 0.5 --change classifier.lr --resume " + at).size(),
      1u);
  // Each run continues from the previous one's checkpoint.
  int step = 7;
  for (const auto& [given, names] :
       {std::pair{"--classifier.optimizer adam --classifier.lr 0.01",
                  "classifier.optimizer,classifier.lr"},
        {"--reweight.optimizer sgd --reweight.lr 0.1", "reweight.optimizer,reweight.lr"},
        {"--method unrolled", "classifier.method,classifier.iterations,classifier.alpha"},
        {"--classifier.unroll 2", "classifier.unroll"},
        {"--classifier.accumulate 2", "classifier.accumulate"},
        {"--reweight.clip 1", "reweight.clip"},
        {"--classifier.warmup 3", "classifier.warmup"}}) {
    const std::string on = "train --resume " + at + " " + given + " --steps ";
    expect_usage_error(on + std::to_string(step + 1), "--change");
    const Outcome changed = run(on + std::to_string(step + 4) + " --change " + names);
    EXPECT_EQ(changed.code, 0) << given << "\n" << changed.output;
    step += 4;
    EXPECT_EQ(step_of(at), step);
  }
}

}  // namespace
}  // namespace ebb::test
