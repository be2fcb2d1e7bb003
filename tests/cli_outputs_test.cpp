// What `ebb train` leaves behind when something goes wrong: failing outputs, signals, errors during
// the run, losses that are not finite.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "ebb/io/checkpoint.h"
#include "support/command_line.h"
#include "support/model_folders.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const std::string tiny = "train --workload lm --batch 4 --eval-batches 0 ";

std::int64_t step_of(const fs::path& folder) {
  return io::read_summary(folder / "checkpoint.safetensors").step;
}

int lines_with(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

// A command does not overwrite its own input.
TEST(CommandLineOutputs, DoNotReplaceInputs) {
  const TemporaryFolder folder;
  const fs::path model = folder / "gpt2", weights = model / "model.safetensors",
                 runs = folder / "run";
  fs::copy(golden_models / "gpt2", model);
  const std::string before = contents(weights), tokens(2000, '\0'),
                    data = folder.write("tokens.bin", tokens).string();
  const auto refused = [&](const std::string& arguments, const std::string& part) {
    expect_usage_error(arguments, part);
    EXPECT_EQ(contents(weights), before) << arguments;
    EXPECT_EQ(contents(data), tokens) << arguments;
  };
  const std::string of = " --model " + model.string() + " ", small = "--sequence 8 --batch 2 ";
  refused("train --steps 1 --data " + data + of + small + "--save " + model.string(),
          "is the input of --model");
  for (const char* option : {"--save ", "--profile "}) {
    refused("plan --data " + data + of + small + option + data, "is the input of --data");
    refused("plan --data " + data + of + small + option + weights.string(),
            "a file of the input of --model");
  }
  const fs::path settings = folder.write("run.toml", "workload = \"mlp\"\n");
  for (const char* option : {" --save ", " --profile "})
    refused("plan --config " + settings.string() + option + settings.string(),
            "is the input of --config");
  EXPECT_EQ(contents(settings), "workload = \"mlp\"\n");
  refused("plan --workload mlp --save " + (folder / "a").string() + " --profile " +
              (folder / "a").string(),
          "name the same file");
  refused("export" + of + "--onnx " + weights.string(), "a file of the input of --model");
  ASSERT_EQ(run("train --workload gpt2 --layers 1 --width 8 --heads 1 --sequence 8 --vocabulary 16 "
                "--steps 1 --eval-batches 0 --checkpoint " +
                runs.string() + " --log " + runs.string())
                .code,
            0);
  const fs::path kept = runs / "checkpoint.safetensors", fields = runs / "run.json";
  const std::string checkpoint = contents(kept), told = contents(fields);
  for (const fs::path& from : {runs, kept})
    refused("export --checkpoint " + from.string() + " --onnx " + kept.string(),
            "the input of --checkpoint");
  refused("compare " + runs.string() + " --page " + fields.string(), "a file of the input of RUN");
  EXPECT_EQ(contents(kept), checkpoint);
  EXPECT_EQ(contents(fields), told);
  refused("tokenize --tokenizer " + data + " --data " + data + " --out " + data, "tokens.bin");
  // Other files in the folder may be written.
  const std::string onnx = "export" + of + "--onnx " + (model / "model.onnx").string();
  EXPECT_EQ(run(onnx).code, 0);
  EXPECT_EQ(run(onnx).code, 0);
}

TEST(CommandLineOutputs, AreTriedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "").string();
  for (const char* option : {"--checkpoint ", "--log ", "--save "}) {
    expect_failure(
        "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 8 --vocabulary "
        "30 --steps 1 " +
            std::string(option) + file + "/inside",
        1, file);
    expect_failure(
        "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 8 --vocabulary "
        "30 --steps 1 " +
            std::string(option) + "/proc",
        1, "/proc");
  }
  expect_usage_error("train --workload mlp --save " + (folder / "model").string(),
                     "cannot be written as a Hugging Face folder");
  // Planning takes no memory, so a checkpoint of 44 TiB can be planned.
  const Outcome full =
      run("train --workload mlp --hidden 2000000 --layers 3 --batch 1 --steps 1 --overcommit "
          "--checkpoint " +
          (folder / "run").string());
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.output.find("are free, but checkpoints need 43.72 TiB"), std::string::npos)
      << full.output;
  const std::string giant =
      "train --workload gpt2 --layers 2 --width 1048576 --heads 2 --vocabulary 30 --sequence 8 "
      "--batch 1 --steps 1 --overcommit --save " +
      (folder / "model").string();
  const Outcome wide = run(giant);
  EXPECT_EQ(wide.code, 1);
  EXPECT_NE(wide.output.find("are free, but the model needs"), std::string::npos) << wide.output;
  // On one disk they need room together.
  const Outcome both = run(giant + " --checkpoint " + (folder / "run").string());
  EXPECT_NE(both.output.find("of the model of --save"), std::string::npos) << both.output;
}

// Without this check, an obstacle to the file itself would be found only after all steps.
TEST(CommandLineOutputs, FilesThatCannotBeReplacedAreToldBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string gpt2 =
      "train --workload gpt2 --layers 1 --width 16 --heads 2 --sequence 8 --vocabulary 30 --steps "
      "1 ";
  fs::create_directories(folder / "model" / "model.safetensors");
  expect_failure(gpt2 + "--save " + (folder / "model").string(), 1, "this is a folder");
  fs::create_directories(folder / "pipe");
  ASSERT_EQ(mkfifo((folder / "pipe" / "config.json").c_str(), 0600), 0);
  expect_failure(gpt2 + "--save " + (folder / "pipe").string(), 1, "this is a pipe");
  fs::create_directories(folder / "run");
  fs::create_symlink(folder / "nowhere" / "x", folder / "run" / "checkpoint.safetensors");
  expect_failure(gpt2 + "--checkpoint " + (folder / "run").string(), 1, "checkpoint.safetensors");
  for (const char* file : {"run.json", "summary.html"}) {
    const fs::path log = folder / (std::string("log of ") + file);
    fs::create_directories(log / file);
    expect_failure(gpt2 + "--log '" + log.string() + "'", 1, "this is a folder");
  }
  fs::create_directories(folder / "best" / "best.safetensors");
  expect_failure(gpt2 + "--keep 2 --checkpoint " + (folder / "best").string(), 1,
                 "this is a folder");
}

// Each of these commands would fail for another reason once its work begins.
TEST(CommandLineOutputs, OfOtherVerbsAreTriedFirstToo) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "").string(), made = (folder / "made").string(),
                    eval = "eval --model " EBB_GOLDEN_FOLDER "/models/gpt2 --base int8 --tokens " +
                           file + " --save ";
  for (const std::string& command :
       {std::string("profile --workload lm --budget 1KiB --out "),
        std::string("frontier --workload lm --batch 8 --accumulate 64 --out "),
        std::string("ablate --workload lm --techniques none --out "), eval}) {
    expect_failure(command + file + "/inside", 1, file + "/inside");
    EXPECT_NE(run(command + made).code, 0);
    EXPECT_FALSE(fs::exists(made)) << command;
  }
}

// For the program `ulimit -f` is like a full disk: a failed checkpoint does not end training.
TEST(CommandLineOutputs, ALimitOfFileSizesIsAnError) {
  const TemporaryFolder folder;
  rlimit limits{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limits), 0);
  const rlim_t before = limits.rlim_cur;
  limits.rlim_cur = 4096;  // the program inherits it
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limits), 0);
  const Outcome outcome =
      run(tiny + "--steps 4 --checkpoint-every 1 --checkpoint " + (folder / "run").string());
  limits.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limits), 0);
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("a checkpoint failed, training continues"), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("step 4/4"), std::string::npos) << outcome.output;
  EXPECT_TRUE(fs::is_empty(folder / "run")) << outcome.output;
}

TEST(CommandLineOutputs, AFailingLogDoesNotEndTraining) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "log");
  fs::create_symlink("/dev/full", folder / "log" / "log.jsonl");
  const Outcome outcome = run(tiny + "--steps 5 --checkpoint " + (folder / "run").string() +
                              " --log " + (folder / "log").string());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(lines_with(outcome.output, "a log failed"), 1) << outcome.output;
  EXPECT_EQ(lines_with(outcome.output, "ebb: error: "), 1) << outcome.output;
  EXPECT_NE(outcome.output.find("5 steps of"), std::string::npos) << outcome.output;
  EXPECT_EQ(step_of(folder / "run"), 5);
}

TEST(CommandLineOutputs, AFailingCheckpointIsTriedAgain) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "run" / "step-00000002.safetensors" / "in the way");
  const Outcome outcome = run(tiny + "--steps 5 --keep 2 --checkpoint-every 2 --checkpoint " +
                              (folder / "run").string());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(lines_with(outcome.output, "a checkpoint failed"), 1) << outcome.output;
  EXPECT_EQ(step_of(folder / "run"), 5);
  EXPECT_EQ(io::read_summary(folder / "run" / "step-00000004.safetensors").step, 4);
}

// The last checkpoint is written when training is over, and an interrupted run is not complete.
TEST(CommandLineOutputs, FailuresAfterTheLastStepAreToldAsSuch) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "run" / "step-00000002.safetensors" / "in the way");
  const Outcome last = run(tiny + "--steps 2 --keep 2 --checkpoint " + (folder / "run").string());
  EXPECT_EQ(last.code, 1);
  EXPECT_NE(last.output.find("ebb: a checkpoint failed: "), std::string::npos) << last.output;
  EXPECT_NE(last.output.find("the run is complete; a checkpoint could not"), std::string::npos)
      << last.output;

  fs::create_directories(folder / "log");
  fs::create_symlink("/dev/full", folder / "log" / "log.jsonl");
  const std::string at = (folder / "cut").string();
  const Outcome cut =
      run(tiny + "--steps 1000000 --checkpoint-every 3 --checkpoint " + at + " --log " +
          (folder / "log").string() + " 2>&1 & p=$!; while [ ! -f " + at +
          "/checkpoint.safetensors ] && kill -0 $p 2>/dev/null; do sleep 0.02; done; kill -INT $p; "
          "wait $p; exit $?");
  EXPECT_EQ(cut.code, 130) << cut.output;
  EXPECT_NE(cut.output.find("the run was interrupted; a log could not"), std::string::npos)
      << cut.output;
}

// If the checkpoint is a symbolic link to another disk it stays one, even if several checkpoints
// are kept.
TEST(CommandLineOutputs, SymbolicLinksToCheckpointsStay) {
  for (const char* keep : {"1", "2"}) {
    const TemporaryFolder folder;
    fs::create_directories(folder / "run");
    fs::create_symlink(folder / "elsewhere", folder / "run" / "checkpoint.safetensors");
    const Outcome outcome = run(tiny + "--steps 3 --checkpoint-every 1 --keep " + keep +
                                " --checkpoint " + (folder / "run").string());
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_TRUE(fs::is_symlink(folder / "run" / "checkpoint.safetensors")) << keep;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder / "elsewhere"))) << keep;
    EXPECT_EQ(step_of(folder / "run"), 3);
  }
}

TEST(CommandLineOutputs, AFolderIsForOneRunAtATime) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), in_use = "another run is writing";
  fs::create_directories(at);
  const int locked = open(at.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(locked, LOCK_EX | LOCK_NB), 0);
  expect_failure(tiny + "--steps 1 --checkpoint " + at, 1, in_use);
  expect_failure(tiny + "--steps 1 --resume auto --checkpoint " + at, 1, in_use);
  close(locked);
  EXPECT_TRUE(fs::is_empty(at));
  const std::string file = at + "/checkpoint.safetensors";
  const Outcome second = run(tiny + "--steps 1000000 --checkpoint-every 3 --checkpoint " + at +
                             " >/dev/null 2>&1 & p=$!; while [ ! -f " + file +
                             " ] && kill -0 $p 2>/dev/null; do sleep 0.02; done; '" + program() +
                             "' train --steps 2000000 --resume " + at +
                             " 2>&1; code=$?; kill -TERM $p; wait $p; exit $code");
  EXPECT_EQ(second.code, 1);
  EXPECT_TRUE(second.output.starts_with("ebb: error: " + at + ": " + in_use)) << second.output;
  EXPECT_EQ(run("train --resume " + at + " --steps " + std::to_string(step_of(at) + 1)).code, 0);
}

TEST(CommandLineOutputs, WhatKilledRunsLeftIsRemoved) {
  const TemporaryFolder folder;
  const fs::path at = folder / "run";
  fs::create_directories(at / "best.safetensors.4.tmp");  // not a file of a run
  for (const char* name :
       {"step-00000006.safetensors.4242.tmp", "best.safetensors.4242-1.tmp",
        "checkpoint.safetensors.link", "best.safetensors.link", "notes.4242.tmp", "step-6.link",
        "step-x.safetensors.1.tmp", "step-00000007.safetensors.1.tmp"})
    folder.write("run/" + std::string(name), "half");
  fs::create_symlink(at / "notes.4242.tmp", at / "step-00000008.safetensors.1.tmp");
  // A process is still writing this one.
  const int writing = open((at / "step-00000007.safetensors.1.tmp").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(writing, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run(tiny + "--steps 1 --checkpoint " + at.string()).code, 0);
  close(writing);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(at)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"best.safetensors.4.tmp", "checkpoint.safetensors",
                                          "notes.4242.tmp", "step-00000007.safetensors.1.tmp",
                                          "step-00000008.safetensors.1.tmp", "step-6.link",
                                          "step-x.safetensors.1.tmp"}));
}

// A command of the shell whose descriptor 4 is a pipe that nobody reads from.
Outcome run_without_reader(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string pipe = (folder / "pipe").string();
  return run_command("mkfifo " + pipe + " && exec 3<>" + pipe + " 4>" + pipe + " 3<&-; { '" +
                     program() + "' " + arguments + "; }");
}

TEST(CommandLineOutputs, AClosedStandardErrorDoesNotEndTraining) {
  const TemporaryFolder folder;
  const Outcome outcome = run_without_reader(
      folder, tiny + "--steps 5 --checkpoint " + (folder / "run").string() + " 2>&4");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("5 steps of"), std::string::npos) << outcome.output;
  EXPECT_EQ(step_of(folder / "run"), 5);
}

// As if SIGPIPE had ended the program, but only after its work.
TEST(CommandLineOutputs, AClosedStandardOutputIsNoMessage) {
  for (const std::string arguments :  // texts that fit into a buffer, and longer ones
       {"info", "help train", "man", "plan --workload mlp --layers 1 --batch 4"}) {
    const TemporaryFolder folder;
    const Outcome outcome = run_without_reader(folder, arguments + " >&4");
    EXPECT_EQ(outcome.code, 128 + SIGPIPE) << arguments;
    EXPECT_EQ(outcome.output, "") << arguments;
  }
  const TemporaryFolder folder;
  const Outcome trained = run_without_reader(
      folder, tiny + "--steps 2 --checkpoint " + (folder / "run").string() + " >&4");
  EXPECT_EQ(trained.code, 128 + SIGPIPE) << trained.output;
  EXPECT_EQ(step_of(folder / "run"), 2);
}

// Starts a long run, waits for its first checkpoint, sends a signal, and resumes afterwards.
TEST(CommandLineOutputs, SignalsKeepTheLastWholeStep) {
  for (const auto& [signal, code] : {std::pair{"INT", 130}, {"TERM", 143}}) {
    for (const char* workload : {"lm --batch 4", "reweight --batch 4 --hidden 8"}) {
      const TemporaryFolder folder;
      const std::string at = (folder / "run").string();
      const Outcome outcome =
          run("train --workload " + std::string(workload) +
              " --eval-batches 0 --steps 1000000 --checkpoint-every 3 --checkpoint " + at +
              " 2>&1 & p=$!; while [ ! -f " + at +
              "/checkpoint.safetensors ] && kill -0 $p 2>/dev/null; do sleep 0.02; done; " +
              "sleep 0.1; kill -" + signal + " $p; wait $p; exit $?");
      EXPECT_EQ(outcome.code, code) << outcome.output;
      EXPECT_NE(outcome.output.find("interrupted after"), std::string::npos) << outcome.output;
      const std::int64_t step = step_of(at);
      EXPECT_GE(step, 3);
      EXPECT_NE(outcome.output.find("the checkpoint of step " + std::to_string(step)),
                std::string::npos)
          << outcome.output;
      EXPECT_EQ(run("train --steps " + std::to_string(step + 1) + " --resume " + at).code, 0);
    }
  }
}

// A run in the background that gets these signals of the shell's kill after its first checkpoint.
Outcome run_with_signals(const fs::path& at, const std::string& before,
                         const std::vector<std::string>& signals) {
  std::string command =
      before + "'" + program() + "' " + tiny +
      "--steps 1000000 --checkpoint-every 3 --checkpoint " + at.string() +
      " 2>&1 & p=$!; while [ ! -f " + at.string() +
      "/checkpoint.safetensors ] && kill -0 $p 2>/dev/null; do sleep 0.02; done; ";
  for (const std::string& signal : signals) command += "kill -" + signal + " $p; ";
  return run_command(command + "wait $p; exit $?");
}

// A closing terminal may send SIGHUP twice. Where nohup had it ignored, a run goes on.
TEST(CommandLineOutputs, AClosedTerminalKeepsTheLastWholeStep) {
  const TemporaryFolder folder;
  const auto usual = std::signal(SIGHUP, SIG_DFL);  // these tests may have been started by nohup
  const Outcome ended = run_with_signals(folder / "run", "", {"HUP", "HUP"}),
                went_on = run_with_signals(folder / "on", "trap '' HUP; ", {"HUP", "TERM"});
  std::signal(SIGHUP, usual);
  EXPECT_EQ(ended.code, 128 + SIGHUP) << ended.output;
  EXPECT_NE(ended.output.find("interrupted after"), std::string::npos) << ended.output;
  EXPECT_GE(step_of(folder / "run"), 3);
  EXPECT_EQ(went_on.code, 128 + SIGTERM) << went_on.output;
  EXPECT_NE(went_on.output.find("interrupted after"), std::string::npos) << went_on.output;
}

// The signal comes while the only checkpoint, of about 30 MiB, is written.
TEST(CommandLineOutputs, ASignalAfterTheLastStepKeepsIt) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(), log = (folder / "log").string(),
                    file = at + "/checkpoint.safetensors";
  const Outcome outcome =
      run("train --workload gpt2 --layers 1 --width 128 --heads 2 --sequence 8 --vocabulary 20000 "
          "--batch 1 --steps 1 --eval-batches 0 --log " +
          log + " --checkpoint " + at + " 2>&1 & p=$!; while ! grep -q step_ms " + log +
          "/log.jsonl 2>/dev/null && kill -0 $p 2>/dev/null; do sleep 0.01; done; until [ -f " +
          file + ".$p.tmp ] || [ -f " + file +
          " ] || ! kill -0 $p 2>/dev/null; do sleep 0.001; done; kill -TERM $p; wait $p; exit $?");
  EXPECT_TRUE(outcome.code == 128 + SIGTERM || outcome.code == 0) << outcome.output;  // 0: too late
  ASSERT_TRUE(fs::exists(file)) << outcome.output;
  EXPECT_EQ(step_of(at), 1);
}

// After the last step nothing prevents --save from writing the model: neither a request to stop nor
// an error of the evaluation, which comes first.
TEST(CommandLineOutputs, ATrainedModelIsSavedWhateverEvaluationDoes) {
  const TemporaryFolder folder;
  const std::string save = (folder / "model").string(), log = (folder / "log").string();
  const Outcome outcome =
      run("train --workload gpt2 --layers 1 --width 32 --heads 2 --sequence 16 --vocabulary 50 "
          "--batch 2 --steps 1 --eval-batches 100000 --log " +
          log + " --save " + save + " 2>&1 & p=$!; while ! grep -q step_ms " + log +
          "/log.jsonl 2>/dev/null && kill -0 $p 2>/dev/null; do sleep 0.02; done; sleep 0.3; kill "
          "-TERM $p; wait $p; exit $?");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(folder / "model/model.safetensors")) << outcome.output;
}

// The obstacle is found only when the model is written, as a full disk is.
TEST(CommandLineOutputs, AModelThatCannotBeSavedIsKeptElsewhere) {
  const TemporaryFolder folder;
  const fs::path model = folder / "gpt2", out = folder / "out", other = folder / "other";
  fs::copy(golden_models / "gpt2", model);
  folder.write("gpt2/generation_config.json", "{}");
  fs::create_directories(out / "generation_config.json" / "in the way");
  fs::create_directories(other);
  const std::string data = folder.write("tokens.bin", std::string(2000, '\0')).string();
  const Outcome outcome =
      run_command("TMPDIR=" + other.string() + " '" + program() +
                  "' train --steps 1 --sequence 8 --batch 2 --eval-batches 0 --model " +
                  model.string() + " --data " + data + " --save " + out.string() + " 2>&1");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("the model of --save failed: "), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("the model is in " + other.string()), std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("1 steps of"), std::string::npos) << outcome.output;
  ASSERT_FALSE(fs::is_empty(other));
  EXPECT_EQ(run("train --steps 1 --sequence 8 --batch 2 --eval-batches 0 --model " +
                fs::directory_iterator(other)->path().string() + " --data " + data)
                .code,
            0);
}

TEST(CommandLineOutputs, ALossThatIsNotFiniteStopsTheRun) {
  const TemporaryFolder folder;
  const std::string at = (folder / "run").string(),
                    wild =
                        "train --workload mlp --batch 4 --eval-batches 0 --optimizer sgd --lr "
                        "1e30 --steps 12 ";
  const Outcome outcome = run(wild + "--checkpoint-every 1 --checkpoint " + at);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(lines_with(outcome.output, "ebb: error: "), 1) << outcome.output;
  EXPECT_NE(outcome.output.find("not finite"), std::string::npos) << outcome.output;
  if (fs::exists(folder / "run" / "checkpoint.safetensors")) {
    EXPECT_LT(step_of(at), 12);
  }
  EXPECT_EQ(run(wild + "--on-nan ignore").code, 0);
  EXPECT_EQ(run(wild + "--on-nan skip").code, 0);
  // After an update that makes weights infinite, skipping steps does not help.
  const Outcome lost =
      run("train --workload gpt2 --layers 1 --width 32 --heads 2 --sequence 16 --vocabulary 50 "
          "--batch 4 --eval-batches 0 --steps 1000000 --lr 1e38 --on-nan skip");
  EXPECT_EQ(lost.code, 1);
  EXPECT_NE(lost.output.find("every later step would be skipped"), std::string::npos)
      << lost.output;
  const Outcome levels =
      run("train --workload reweight --batch 4 --hidden 8 --eval-batches 0 "
          "--steps 12 --classifier.lr 1e30");
  EXPECT_EQ(levels.code, 1);
  EXPECT_NE(levels.output.find("the loss of the level \"reweight\" is nan"), std::string::npos)
      << levels.output;
  // The classifier has diverged, although its own loss is not known yet.
  EXPECT_NE(levels.output.find("of the level \"classifier\""), std::string::npos) << levels.output;
  expect_usage_error("train --workload reweight --on-nan skip", "--on-nan");
}

// The weights stay finite, but are so large that no later step can be taken.
TEST(CommandLineOutputs, SkipsWithoutEndStopTheRun) {
  const std::string wild =
      "train --workload mlp --hidden 8 --batch 4 --eval-batches 0 --steps 1000 --optimizer sgd "
      "--lr 1e20 --on-nan ";
  for (const char* more : {"skip", "skip --precision fp16"}) {
    const Outcome outcome = run(wild + more);
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("64 steps in a row were skipped"), std::string::npos)
        << outcome.output;
  }
}

TEST(CommandLineOutputs, WeightsThatAreNotFiniteAreToldWithTheirStep) {
  const TemporaryFolder folder;
  for (const std::string on_nan : {"stop", "skip"}) {
    const Outcome outcome = run(tiny + "--steps 3 --lr 1e38 --checkpoint-every 1 --checkpoint " +
                                (folder / on_nan).string() + " --on-nan " + on_nan);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.output.find("error: step 1: \"tokens.weight\" is not finite"),
              std::string::npos)
        << outcome.output;
    EXPECT_EQ(outcome.output.find("--on-nan skip skips") == std::string::npos, on_nan == "skip")
        << outcome.output;
  }
}

// The weights after the last step are finite, but their logits are not.
TEST(CommandLineOutputs, ATestLossThatIsNotFiniteIsAnError) {
  const TemporaryFolder folder;
  const std::string train = "train --workload lm --batch 4 --optimizer sgd --eval-batches 1 ";
  for (const std::string more : {"", "--keep-best --eval-every 1 "}) {
    const fs::path at = folder / (more.empty() ? "plain" : "judged");
    const Outcome outcome =
        run(train + "--steps 1 --lr 3e38 " + more + "--checkpoint " + at.string());
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("error: step 1: the test loss is "), std::string::npos)
        << outcome.output;
    EXPECT_FALSE(fs::exists(at / "best.safetensors"));
  }
  const Outcome ignored = run(train + "--steps 1 --lr 3e38 --on-nan ignore");
  EXPECT_EQ(ignored.code, 0);
  EXPECT_NE(ignored.output.find("warning: step 1: the test loss is "), std::string::npos)
      << ignored.output;
}

// An overflow of evaluation alone loses no model: its weights are finite.
TEST(CommandLineOutputs, AModelOfFiniteWeightsIsSavedWhateverItsTestLoss) {
  const TemporaryFolder folder;
  const Outcome outcome = run(
      "train --workload gpt2 --layers 1 --width 8 --heads 1 --sequence 8 --vocabulary 16 --batch 2 "
      "--optimizer sgd --eval-batches 1 --steps 1 --lr 3e36 --save " +
      (folder / "model").string());
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("although all weights are finite"), std::string::npos)
      << outcome.output;
  EXPECT_TRUE(fs::exists(folder / "model/model.safetensors")) << outcome.output;
}

// best.safetensors of a run without --keep-best has the weights with the lowest training loss.
TEST(CommandLineOutputs, TheBestModelIsThatOfTheLowestTestLoss) {
  const TemporaryFolder folder;
  const std::string sizes =
      "train --workload gpt2 --layers 1 --width 8 --heads 1 --sequence 8 --vocabulary 16 --batch 2 "
      "--eval-batches 1 --lr 2 --checkpoint " +
      (folder / "run").string() + " ";
  ASSERT_EQ(run(sizes + "--steps 12 --keep 2 --checkpoint-every 2").code, 0);
  const Outcome again =
      run(sizes + "--steps 12 --resume auto --eval-every 2 --keep-best --json --save " +
          (folder / "model").string() + " 2>/dev/null");
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.output.find("\"saved_step\":12"), std::string::npos) << again.output;
}

// A queue that starts the job again must not go on with a run that --patience has ended.
TEST(CommandLineOutputs, ARunThatPatienceEndedIsComplete) {
  const TemporaryFolder folder;
  const std::string job =
      "train --workload lm --batch 4 --eval-batches 1 --optimizer sgd --lr 0 --steps 1000 "
      "--eval-every 2 --patience 2 --resume auto --checkpoint " +
      (folder / "run").string();
  ASSERT_EQ(run(job).code, 0);
  const std::int64_t ended = step_of(folder / "run");
  EXPECT_LT(ended, 20);
  const Outcome again = run(job);
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_NE(again.output.find("--patience has ended it"), std::string::npos) << again.output;
  EXPECT_EQ(step_of(folder / "run"), ended);
}

TEST(CommandLineOutputs, GuardsChangeNoBit) {
  const auto losses = [](const std::string& more) {
    const Outcome outcome =
        run("train --workload resnet --batch 4 --eval-batches 0 --steps 3 --json "
            "2>/dev/null --on-nan " +
            more);
    EXPECT_EQ(outcome.code, 0);
    const std::size_t begin = outcome.output.find("\"losses\""),
                      end = outcome.output.find(']', begin);
    return outcome.output.substr(begin, end - begin);
  };
  const std::string plain = losses("ignore");
  EXPECT_GT(plain.size(), 20u);
  EXPECT_EQ(losses("stop"), plain);
  EXPECT_EQ(losses("skip"), plain);
}

}  // namespace
}  // namespace ebb::test
