// Configuration files: a printed file is read back as the same run, and invalid values are refused
// with their place.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/toml.h"
#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const TemporaryFolder& folder() {
  static const TemporaryFolder made;
  return made;
}

// The file's name, quoted for the shell.
std::string config(const std::string& text, const std::string& name = "run.toml") {
  return "'" + folder().write(name, text).string() + "'";
}

std::string printed(const std::string& arguments) {
  const Outcome outcome = run("train " + arguments + " --print-config");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return outcome.output;
}

void expect_same_when_read(const std::string& text) {
  EXPECT_EQ(printed("--config " + config(text)), text);
}

constexpr const char* small_reweight = "--workload reweight --hidden 8 --batch 10 --meta 100";

TEST(Config, IsReadBackAsTheSameRun) {
  for (const char* arguments :
       {"--workload lm --seed 18446744073709551615 --lr 0.1 --dropout 0.05",
        "--workload gpt2 --layers 1 --width 8 --heads 2 --sequence 8 --vocabulary 50 --tf32=false",
        "--workload llama --layers 1 --width 8 --heads 2 --kv-heads 1 --hidden 8 --sequence 8 "
        "--vocabulary 50 --precision bf16 --budget 100MiB --recompute blocks",
        "--workload bert --layers 1 --width 8 --heads 2 --sequence 8 --vocabulary 50 --clip 1e-30 "
        "--clip-by last-norm --optimizer adamw8bit --schedule cosine --warmup 3",
        "--workload resnet --depth 18 --layout channels-last --accumulate auto --budget least",
        "--workload mlp --width 9 --precision split-bf16 --master-bits 8 --keep 3 --checkpoint "
        "nowhere --threads 2",
        "--workload mlp --layers 1 --checkpoint-every 7 --checkpoint nowhere --on-nan skip"})
    expect_same_when_read(printed(arguments));
  const std::string text = printed(std::string(small_reweight) +
                                   " --method cg --classifier.iterations 3 --classifier.alpha 0.3 "
                                   "--reweight.clip 2 --classifier.budget 50MiB --imbalance 1.5");
  for (const char* part :
       {"[levels.classifier]\n", "[levels.reweight]\n", "iterations = 3\n", "alpha = 0.3\n",
        "method = \"cg\"\n", "budget = 52428800\n", "imbalance = 1.5\n", "lr = 1e-05\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  EXPECT_GT(text.find("\nlr ="), text.find("[levels")) << text;  // there is no rate of the whole
  expect_same_when_read(text);
  expect_same_when_read(printed(std::string(small_reweight) + " --unweighted"));
}

TEST(Config, HoldsUnusualText) {
  const fs::path data = folder() / "a \"b\"\n'é\\";
  fs::create_directories(data);
  std::string words;
  for (int i = 0; i < 300; ++i) words += i % 3 ? "one " : "two\n";
  std::ofstream(data / "train.txt") << words;
  const std::string text = "workload = \"lm\"\nlog = \"x\\ty\"\nsequence = 4\nbatch = 2\ndata = " +
                           toml::quoted(data.string()) + "\n";
  const std::string whole = printed("--config " + config(text));
  EXPECT_NE(whole.find("data = " + toml::quoted(data.string())), std::string::npos) << whole;
  expect_same_when_read(whole);
}

TEST(Config, WhatIsPrintedIsWhatIsUsed) {
  const std::string text = printed("--workload mlp");
  for (const char* part : {"workload = \"mlp\"\n", "hidden = 200\n", "layers = 2\n", "batch = 64\n",
                           "precision = \"fp32\"\n", "steps = 100\n", "seed = 0\n", "\n# budget: "})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  EXPECT_EQ(text.find("\nheads"), std::string::npos) << text;  // of other workloads
  EXPECT_EQ(text.find("\n# heads"), std::string::npos) << text;
  EXPECT_EQ(text.find("[levels"), std::string::npos) << text;  // of several levels
}

// Arguments that train adapters of a golden folder's model.
std::string adapter_run() {
  std::ofstream(folder() / "tokens.bin", std::ios::binary) << std::string(400, '\0');
  return "--model " + std::string(EBB_GOLDEN_FOLDER) + "/models/llama --data " +
         (folder() / "tokens.bin").string() + " --sequence 8 --lora 2 --lora-modules q_proj,k_proj";
}

TEST(Config, HoldsAdapters) {
  const std::string text =
      printed(adapter_run() + " --base nf4 --lora-dropout 0.5 --merge --save " +
              (folder() / "saved").string());
  for (const char* part :
       {"lora = 2\n", "lora-alpha = 4", "lora-dropout = 0.5\n", "base = \"nf4\"\n",
        "lora-modules = [\"q_proj\", \"k_proj\"]\n", "merge = true\n", "\n# adapter: "})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  expect_same_when_read(text);
  expect_same_when_read(printed(adapter_run()));  // neither merged nor saved
}

// Keys that print-config shows for some workload.
std::set<std::string> printed_keys() {
  std::set<std::string> keys;
  const fs::path text = folder() / "keys.txt", table = folder() / "keys.csv";
  std::ofstream(text) << std::string(100, 'x');
  std::ofstream(table) << "1,a\n2,b\n";
  for (const std::string& arguments :
       {std::string("--workload llama --layers 1 --width 8 --heads 2 --sequence 8"),
        std::string("--workload resnet"), std::string("--workload bert --layers 1"),
        std::string(small_reweight), adapter_run(),
        "--workload lm --sequence 4 --batch 2 --data " + text.string(),
        "--workload bert --layers 1 --classes 2 --batch 1 --data " + table.string()}) {
    std::istringstream lines(printed(arguments));
    std::string level;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("[levels.")) level = line.substr(8, line.find(']') - 8) + ".";
      if (line.starts_with("# ") && !line.starts_with("# ---")) line.erase(0, 2);
      const std::size_t end = line.find_first_of(" :");
      if (end != std::string::npos && line[0] != '#') keys.insert(level + line.substr(0, end));
    }
  }
  return keys;
}

// The names of all options of a verb, without dashes.
std::set<std::string> options_of(const std::string& verb) {
  std::set<std::string> names;
  std::istringstream lines(run("help " + verb).output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos || line[begin] != '-') continue;
    const std::size_t dashes = line.find("--"), end = line.find_first_of(" ,[", dashes);
    names.insert(line.substr(dashes + 2, end - dashes - 2));
  }
  return names;
}

TEST(Config, EveryOptionIsAKey) {
  std::set<std::string> keys = printed_keys();
  for (const char* of_levels_above : {"method", "unroll", "warmup", "iterations", "alpha"})
    keys.insert(std::string("reweight.") + of_levels_above);  // known, but always refused
  keys.insert("image-size");  // of a folder of images, which data_formats_test.cpp makes
  for (const std::string& option : options_of("train"))
    EXPECT_TRUE(keys.contains(option) || option == "help" || option == "config" ||
                option == "print-config")
        << option;
}

// No option is accepted and ignored: each one either changes the run of several levels or is
// refused by name.
TEST(Config, SeveralLevelsTakeOrRefuseEveryOption) {
  std::map<std::string, std::string> values{{"workload", "mlp"},
                                            {"batch", "11"},
                                            {"data", "nowhere"},
                                            {"seed", "1"},
                                            {"classifier", "resnet32"},
                                            {"imbalance", "2"},
                                            {"meta", "200"},
                                            {"budget", "80MiB"},
                                            {"host-budget", "80MiB"},
                                            {"disk-budget", "80MiB"},
                                            {"offload-folder", "."},
                                            {"offload", "state"},
                                            {"recompute", "blocks"},
                                            {"optimizer", "adamw"},
                                            {"accumulate", "2"},
                                            {"leaves", "2"},
                                            {"shard", "1"},
                                            {"reduce", "fast"},
                                            {"precision", "bf16"},
                                            {"lanes", "1"},
                                            {"loss-walks", "1"},
                                            {"rounding", "kahan"},
                                            {"master-bits", "8"},
                                            {"activation-bits", "8"},
                                            {"clip", "1"},
                                            {"clip-by", "last-norm"},
                                            {"on-nan", "ignore"},
                                            {"sparsity", "0.5"},
                                            {"sparsity-pattern", "2:4"},
                                            {"sparsity-method", "rigl"},
                                            {"sparsity-schedule", "constant"},
                                            {"sparsity-from", "2"},
                                            {"sparsity-until", "9"},
                                            {"sparsity-every", "3"},
                                            {"sparsity-masks", "."},
                                            {"prune", "0.5"},
                                            {"prune-schedule", "constant"},
                                            {"prune-from", "2"},
                                            {"prune-until", "9"},
                                            {"prune-every", "3"},
                                            {"prune-structure", "heads"},
                                            {"prune-multiple", "8"},
                                            {"device", "nowhere"},
                                            {"steps", "7"},
                                            {"epochs", "2"},
                                            {"eval-every", "5"},
                                            {"patience", "2"},
                                            {"tokens", "bytes"},
                                            {"labels-from", "1"},
                                            {"image-size", "16"},
                                            {"lr", "0.5"},
                                            {"warmup", "3"},
                                            {"schedule", "linear"},
                                            {"eval-batches", "3"},
                                            {"plan", "nowhere"},
                                            {"without", "fuse_pointwise"},
                                            {"checkpoint", "nowhere"},
                                            {"checkpoint-every", "3"},
                                            {"keep", "2"},
                                            {"resume", "auto"},
                                            {"change", "lr"},
                                            {"save", "nowhere"},
                                            {"log", "nowhere"},
                                            {"threads", "1"},
                                            {"layout", "channels-last"},
                                            {"dropout", "0.5"},
                                            {"lora", "2"},
                                            {"lora-alpha", "3"},
                                            {"lora-dropout", "0.5"},
                                            {"lora-modules", "q_proj"},
                                            {"adapter", "."},
                                            {"base", "nf4"},
                                            {"model", "."}};
  for (const char* size : {"layers", "width", "hidden", "heads", "kv-heads", "vocabulary",
                           "sequence", "classes", "depth"})
    values[size] = "5";
  for (const char* flag : {"whole-process", "tf32", "huge-pages", "lock-memory", "pin-threads",
                           "overcommit", "merge", "pack", "json", "keep-best", "unweighted"})
    values[flag] = "";
  for (const char* level : {"classifier.", "reweight."})
    for (const auto& [name, value] : {std::pair{"method", "cg"},
                                      {"unroll", "3"},
                                      {"warmup", "3"},
                                      {"iterations", "3"},
                                      {"alpha", "0.7"},
                                      {"lr", "0.7"},
                                      {"clip", "3"},
                                      {"optimizer", "lion"},
                                      {"accumulate", "2"},
                                      {"precision", "bf16"},
                                      {"recompute", "blocks"},
                                      {"budget", "90MiB"}})
      values[std::string(level) + name] = value;
  const std::string common = "train --workload reweight --batch 10 --print-config",
                    plain = run(common).output;
  for (const std::string& option : options_of("train")) {
    if (option == "help" || option == "config" || option == "print-config") continue;
    ASSERT_TRUE(values.contains(option)) << option;
    std::string command = common;
    const std::string typed = " --" + option + " " + values[option];
    if (const std::size_t at = command.find(" --" + option + " "); at != std::string::npos)
      command.replace(at, command.find(' ', command.find(' ', at + 1) + 1) - at, typed);
    else
      command += typed;
    const Outcome outcome = run(command);
    if (outcome.code == 2)
      EXPECT_NE(outcome.output.find("--" + option), std::string::npos) << command << outcome.output;
    else
      EXPECT_EQ(outcome.code, 0) << command << outcome.output;
    EXPECT_NE(outcome.output, plain) << command;
  }
}

TEST(Config, WhatIsTypedWins) {
  const std::string file = config("workload = \"mlp\"\nsteps = 7\nseed = 3\ntf32 = false\n");
  const std::string text = printed("--config " + file + " --steps 9");
  EXPECT_NE(text.find("steps = 9\n"), std::string::npos) << text;
  EXPECT_NE(text.find("seed = 3\n"), std::string::npos) << text;
}

TEST(Config, TrainsAsTheOptionsDo) {
  const auto losses = [](const std::string& arguments) {
    const Outcome outcome = run("train " + arguments + " --json 2>/dev/null | tail -n 1");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output)["losses"];
  };
  const std::string file = config(
      "workload = 'mlp'\nhidden = 16\nbatch = 0x10\nsteps = 3\neval-batches = 0\nlr = 1e-2\nseed = "
      "5\nbudget = \"20MiB\"\nrecompute = \"none\"\n");
  EXPECT_EQ(losses("--config " + file),
            losses("--workload mlp --hidden 16 --batch 16 --steps 3 --eval-batches 0 --lr 0.01 "
                   "--seed 5"));
}

TEST(Config, ErrorsNameTheirPlace) {
  struct Case {
    const char *text, *part;
  };
  for (const Case& c : {
           Case{"steps = 1\nsteps = 2", ":2:1: the key steps comes twice"},
           Case{"\nlrr = 1", ":2: there is no key \"lrr\""},
           Case{"rule = 1", ":1: there is no key"},
           Case{"optimizer.rule = \"x\"", ":1: optimizer must be a string, but is a table"},
           Case{"steps = \"9\"", ":1: steps must be a whole number, but is a string"},
           Case{"steps = 9.0", ":1: steps must be a whole number, but is a number"},
           Case{"tf32 = 1", ":1: tf32 must be true or false"},
           Case{"log = 3", ":1: log must be a string"},
           Case{"change = [1]", ":1: change must be an array of strings"},
           Case{"lr = inf", ":1: --lr"},
           Case{"lr = nan", ":1: --lr"},
           Case{"lr = -1", ":1: --lr"},
           Case{"steps = 0", ":1: --steps"},
           Case{"seed = -1", ":1: --seed"},
           Case{"seed = 1.5", ":1: seed must be a whole number"},
           Case{"accumulate = 0", ":1: --accumulate"},
           Case{"budget = \"much\"", ":1: --budget"},
           Case{"schedule = \"sine\"", ":1: --schedule"},
           Case{"master-bits = 9", ":1: --master-bits"},
           Case{"workload = \"mlp\"\nheads = 2", ":2: --heads does not apply to mlp"},
           Case{"workload = \"mlp\"\n[levels.classifier]\nlr = 1", ":3: --classifier.lr is for"},
           Case{"workload = \"reweight\"\nlr = 1", ":2: --lr is for workloads of one level"},
           Case{"workload = \"reweight\"\n[levels.chess]", ":2: there is no level \"chess\""},
           Case{"[levels.classifier]\nlrr = 1", ":2: there is no key \"classifier.lrr\""},
           Case{"levels = 1", ":1: levels holds a table"},
           Case{"method = \"cg\"\n[levels.classifier]\nmethod = \"cg\"", ":3: classifier.method"},
           Case{"workload = \"mlp\"\nrounding = \"kahan\"",
                ":2: --rounding is for --precision pure-bf16"},
           Case{"workload = \"mlp\"\nwhole-process = true", ":2: --whole-process needs --budget"},
           Case{"clip-by = \"last-norm\"", ":1: --clip-by"},
           Case{"workload = \"mlp\"\ntf32 = true", ":2: --tf32 is for a GPU"},
           Case{"date = 2020-01-01", ":1:8: 2020-01-01 is a date"},
       })
    expect_usage_error("train --print-config --config " + config(c.text),
                       std::string("run.toml") + c.part);
  expect_usage_error("train --config nowhere.toml", "nowhere.toml");
  expect_usage_error("train --workload mlp --heads 2 --config " + config("heads = 3"),
                     "error: --heads does not apply");  // typed, so not the file's
}

TEST(Config, OneFileServesAllVerbs) {
  const std::string text = printed(
      "--workload mlp --hidden 16 --batch 8 --steps 200000 --pin-threads --budget 30MiB --threads "
      "1");
  const std::string file = config(text, "all.toml");
  const Outcome plan = run("plan --json --config " + file + " 2>/dev/null");
  ASSERT_EQ(plan.code, 0) << plan.output;
  EXPECT_EQ(nlohmann::json::parse(plan.output)["batch"], 8);
  EXPECT_EQ(nlohmann::json::parse(plan.output)["budget_bytes"], 30 << 20);
  const Outcome fit = run("fit --json --most 32 --points 2 --config " + file + " 2>/dev/null");
  ASSERT_EQ(fit.code, 0) << fit.output;
  EXPECT_EQ(nlohmann::json::parse(fit.output)["largest"], 32);
  const std::string out = " --out '" + (folder() / "out").string() + "'";
  EXPECT_EQ(run("profile --steps 1 --config " + file + out).code, 0);
  EXPECT_EQ(run("frontier --points 2 --config " + file + out).code, 0);
  const std::string pruning = config(text + "prune = 0.3\nprune-until = 9\n", "prune.toml");
  EXPECT_EQ(run("frontier --points 2 --config " + pruning + out).code, 0);
  EXPECT_EQ(run("plan --config " + pruning).code, 0);
  for (const char* verb : {"plan", "fit", "profile", "frontier"})
    expect_usage_error(std::string(verb) + " --config " + config("budget = 1000\nlrr = 1"),
                       ":2: there is no key \"lrr\"");
}

TEST(Config, ResumesWithWhatItSays) {
  const std::string file = config(
      "workload = 'mlp'\nhidden = 8\nbatch = 8\nsteps = 2\neval-batches = 0\nresume = 'auto'\n"
      "checkpoint = " +
          toml::quoted((folder() / "kept").string()),
      "resume.toml");
  ASSERT_EQ(run("train --config " + file).code, 0);
  EXPECT_EQ(run("train --steps 4 --config " + file).code, 0);
  expect_usage_error("train --steps 6 --hidden 9 --config " + file, "hidden was 8 and is now 9");
}

}  // namespace
}  // namespace ebb::test
