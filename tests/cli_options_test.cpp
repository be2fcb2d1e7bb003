// Options with impossible values, or without effect in combination with others: wrong usage,
// reported before anything is read or planned.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

TEST(CommandLineOptions, SizesThatOverflow) {
  expect_failure("plan --workload gpt2 --layers 4294967298", 1, "layers must be between");
  expect_failure("plan --workload gpt2 --width 1000000000000", 1, "width must be between");
  expect_failure("plan --workload gpt2 --width 2147483640 --heads 4", 1, "2^59");
  expect_failure("plan --workload mlp --hidden 40000000 --layers 100", 1, "PiB");
  expect_failure("train --workload llama --layers 4294967298 --steps 1", 1, "layers");
  expect_failure("plan --workload lm --batch 9000000000000000000", 1, "items");
}

TEST(CommandLineOptions, NumbersThatAreNone) {
  for (const char* value : {"nan", "inf", "-nan", "1e999"}) {
    const std::string text = value;
    for (const char* option : {"--clip ", "--lr ", "--dropout "})
      expect_usage_error("train --workload lm --steps 1 " + (option + text),
                         option[2] == 'c' ? "--clip" : std::string(option).substr(0, 4));
    for (const char* option :
         {"--imbalance ", "--classifier.alpha ", "--classifier.lr ", "--reweight.clip "})
      expect_usage_error("train --workload reweight --steps 1 " + (option + text),
                         std::string(option).substr(0, 10));
  }
  // A norm of 0 is not a limit.
  expect_usage_error("train --workload lm --steps 1 --clip 0", "--clip");
  expect_usage_error("train --workload reweight --steps 1 --classifier.clip 0",
                     "--classifier.clip");
}

TEST(CommandLineOptions, ThatDoNotApplyToTheWorkload) {
  struct Case {
    const char *workload, *option, *users;
  };
  for (const Case& c :
       {Case{"mlp", "--heads 2", "lm, gpt2, llama, bert"},
        Case{"mlp", "--sequence 8", "lm, gpt2, llama, bert"},
        Case{"resnet", "--vocabulary 8", "lm, gpt2, llama, bert"},
        Case{"resnet", "--layers 8", "mlp"}, Case{"gpt2", "--depth 18", "resnet"},
        Case{"gpt2", "--hidden 8", "llama"}, Case{"gpt2", "--kv-heads 2", "llama"},
        Case{"mlp", "--dropout 0.1", "lm, gpt2, llama, bert"},
        Case{"lm", "--layout channels-last", "resnet"}, Case{"lm", "--classes 3", "bert"}})
    for (const char* verb :
         {"train --steps 1", "plan", "fit --budget 1GiB", "frontier", "profile", "ablate"}) {
      const std::string command = std::string(verb) + " --workload " + c.workload + " " + c.option;
      expect_usage_error(command, std::string(c.option).substr(0, std::string(c.option).find(' ')));
      expect_usage_error(command, c.users);
    }
  for (const char* option : {"--imbalance 10", "--meta 100", "--classifier mlp", "--method cg",
                             "--classifier.lr 0.1", "--reweight.clip 1"})
    for (const char* verb : {"train --steps 1", "plan", "ablate"})
      expect_usage_error(std::string(verb) + " --workload mlp " + option, "reweight");
  expect_usage_error("plan --workload reweight --hidden 8 --classifier resnet32", "--hidden");
  expect_usage_error("plan --workload reweight --depth 18", "--depth");
  expect_usage_error("plan --workload reweight --reweight.method cg", "--reweight.method");
  expect_usage_error("plan --workload reweight --classifier.iterations 2", "neumann and cg");
  expect_usage_error("plan --workload mlp --width 8 --hidden 9", "--width");
  expect_usage_error("plan --workload mlp --layers 1 --hidden 9", "one layer");
}

TEST(CommandLineOptions, ThatTheDataDecides) {
  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", std::string(5000, 'x')).string();
  for (const char* verb : {"train --steps 1", "plan", "ablate"})
    expect_usage_error(std::string(verb) + " --workload gpt2 --vocabulary 300 --data " + text,
                       "256 tokens");
  expect_usage_error("train --workload mlp --classes 5 --data " + folder.path().string(),
                     "--classes");
}

TEST(CommandLineOptions, ThatHaveNoEffectWithOthers) {
  expect_usage_error("train --workload lm --steps 1 --batch 8 --accumulate 64", "at most 8");
  expect_usage_error("plan --workload lm --batch 8 --accumulate 64", "at most 8");
  expect_usage_error("ablate --workload mlp --batch 2 --accumulate 3", "at most 2");
  expect_usage_error("fit --workload mlp --vary sequence --budget 1GiB", "--vary sequence");
  expect_usage_error("fit --workload mlp --vary batch --batch 8 --budget 1GiB", "--batch");
  expect_usage_error("fit --workload lm --budget least", "--budget");
  expect_usage_error("plan --workload lm --budget least --whole-process", "--whole-process");
  expect_usage_error("plan --workload lm --pin-threads", "--pin-threads");
  expect_usage_error("plan --workload lm --clip-by last-norm", "--clip");
  expect_usage_error("train --workload lm --steps 1 --keep 3", "--keep needs --checkpoint");
  expect_usage_error("ablate --workload mlp --techniques bf16 --budget 1MiB", "auto");
  expect_usage_error("ablate --workload mlp --techniques bf16 --accumulate 2", "accumulate");
  for (const char* verb : {"train --steps 1 ", "plan "})
    for (const char* option :
         {"--clip 1", "--optimizer adamw", "--accumulate 2", "--loss-walks 1", "--on-nan skip"})
      expect_usage_error(std::string(verb) + "--workload reweight " + option, "reweight");
  expect_usage_error("train --workload reweight --rounding kahan",
                     "--rounding is for --precision pure-bf16");
  expect_usage_error("plan --workload reweight --budget least --recompute blocks",
                     "--budget least");
}

// A form of recomputation that frees nothing is refused, and the suggested one frees something.
TEST(CommandLineOptions, RecomputationThatFreesNothing) {
  const TemporaryFolder folder;
  const std::string mlp = "--workload mlp --hidden 8 ", lm = "--workload lm ",
                    levels = "--workload reweight --hidden 16 --batch 20 --meta 100 ",
                    out = "--steps 1 --out " + folder.path().string() + " ";
  for (const std::string& verb : {std::string("plan "), std::string("train --steps 1 "),
                                  "profile " + out, std::string("fit --budget 1GiB --most 64 ")}) {
    // A block of mlp is one layer: nothing is inside.
    expect_usage_error(verb + mlp + "--recompute blocks", "--recompute blocks frees nothing");
    if (verb[0] != 'f')  // without a budget
      expect_usage_error(verb + mlp + "--recompute marked", "the code of mlp marks nothing");
  }
  for (const std::string& verb :
       {std::string("plan "), std::string("train --steps 1 "), "profile " + out}) {
    expect_usage_error(verb + levels + "--recompute blocks", "--recompute blocks frees nothing");
    expect_usage_error(verb + levels + "--classifier.recompute blocks",
                       "--classifier.recompute blocks frees nothing");
  }
  expect_usage_error("plan " + mlp + "--recompute segment=1", "frees nothing");
  for (const char* rule : {"auto", "greedy"}) {
    for (const char* verb : {"plan ", "train --print-config "})
      expect_usage_error(verb + lm + "--recompute " + rule, "add --budget SIZE");
    expect_usage_error("plan " + levels + "--classifier.recompute " + rule, "--budget");
    EXPECT_EQ(run("plan " + lm + "--budget 1GiB --recompute " + rule).code, 0);
  }
  expect_usage_error("plan " + lm + "--recompute marked --budget 1GiB", "without a budget");
  for (const char* rule : {"none", "blocks", "sqrt", "segment=all"})
    EXPECT_EQ(run("plan " + lm + "--recompute " + rule).code, 0) << rule;
  EXPECT_EQ(run("plan " + mlp + "--recompute none").code, 0);
  EXPECT_EQ(run("plan " + mlp + "--budget least").code, 0);
}

// Numbers that float32 cannot hold, and options that no row, level or step would use.
TEST(CommandLineOptions, ThatNothingWouldUse) {
  for (const char* number : {"1e300", "1e-300"})
    for (const char* option :
         {"--workload lm --lr ", "--workload lm --clip ", "--workload reweight --classifier.lr ",
          "--workload reweight --classifier.clip ",
          "--workload reweight --method cg --classifier.alpha "})
      expect_usage_error(std::string("train --steps 1 ") + option + number, "for float32");
  expect_usage_error("train --workload gpt2 --lora 2 --lora-alpha 0 --steps 1", "above 0");
  for (const char* option : {"budget 1GiB", "precision bf16", "recompute none"})
    for (const char* verb : {"train --steps 1 ", "plan "})
      expect_usage_error(
          std::string(verb) + "--workload reweight --unweighted --reweight." + option,
          "unweighted trains only the level classifier");
  const std::string ablate =
      "ablate --workload mlp --hidden 8 --batch 4 --techniques bf16 --points ";
  expect_usage_error(ablate + "1", "no curve");
  expect_usage_error(ablate + "4", "defaults and all");
  const std::string frontier = "frontier --workload mlp --hidden 8 --batch 4 ";
  expect_usage_error(frontier + "--prune 0.5 --recover 1 --disk-budget 1GiB", "--disk-budget");
  expect_usage_error(frontier + "--overcommit", "--prune");
  expect_usage_error(frontier + "--prune 0.5 --recover 1 --accumulate 8", "at most 4");
  expect_failure("plan --workload mlp --classes 1", 1, "at least 2 classes");
  expect_usage_error(
      "train --workload mlp --hidden 8 --steps 2 --prune 0.5 --prune-until 1 --prune-multiple 100",
      "removes nothing");
}

// --accumulate has the same effect on a frontier of pruned models as on their steps.
TEST(CommandLineOptions, PrunedModelsAreTrainedInMicroBatches) {
  const TemporaryFolder folder;
  const auto peak = [&](const std::string& options) {
    const Outcome outcome =
        run("frontier --workload mlp --hidden 64 --batch 64 --prune 0.5 "
            "--recover 1 --eval-batches 1 --json --out " +
            folder.path().string() + options + " 2>/dev/null | tail -n 1");
    const auto json = nlohmann::json::parse(outcome.output, nullptr, false);
    return json["points"][0]["planned_peak_bytes"].get<std::int64_t>();
  };
  EXPECT_NE(peak(" --accumulate 8"), peak(""));
}

// A run that ends before a step that an option names reports it, but this is no error: the run may
// be resumed.
TEST(CommandLineOptions, StepsThatARunDoesNotComeTo) {
  const std::string mlp = "train --workload mlp --hidden 8 --batch 4 --eval-batches 1 --steps 2 ",
                    levels =
                        "train --workload reweight --hidden 8 --batch 20 --meta 100 "
                        "--eval-batches 1 --steps 2 ";
  for (const std::string& command :
       {mlp + "--warmup 3", mlp + "--eval-every 3", mlp + "--sparsity 0.5 --sparsity-until 3",
        mlp + "--sparsity 0.5 --sparsity-schedule constant --sparsity-from 3",
        mlp + "--prune 0.5 --prune-until 3", levels + "--classifier.warmup 3"}) {
    const Outcome late = run(command);
    EXPECT_EQ(late.code, 0) << late.output;
    EXPECT_NE(late.output.find(" 3: the run ends after 2 steps, before "), std::string::npos)
        << command << late.output;
  }
  const TemporaryFolder folder;
  const std::string kept = "--checkpoint " + (folder / "run").string();
  for (const auto& [options, option] :
       {std::pair{kept + "1 --checkpoint-every 3", "--checkpoint-every 3"},
        {kept + "2 --keep 3", "--keep 3"},
        {"--eval-every 1 --patience 2", "--patience 2"},
        {"--schedule cosine --warmup 2", "--schedule cosine"}}) {
    const Outcome late = run(mlp + options);
    EXPECT_EQ(late.code, 0) << late.output;
    EXPECT_NE(late.output.find(std::string(option) + ": the run ends after 2 steps, "),
              std::string::npos)
        << options << late.output;
  }
  const Outcome reached = run(mlp +
                              "--warmup 1 --schedule cosine --eval-every 1 --patience 1 "
                              "--checkpoint-every 2 --keep 2 " +
                              kept + "3");
  EXPECT_EQ(reached.code, 0) << reached.output;
  EXPECT_EQ(reached.output.find("the run ends after"), std::string::npos) << reached.output;
}

nlohmann::json reweighted(const std::string& options) {
  const Outcome outcome =
      run("train --workload reweight --hidden 16 --batch 20 --meta 100 --steps 3 --eval-batches 1 "
          "--method neumann --json " +
          options + " 2>/dev/null | tail -n 1");
  EXPECT_EQ(outcome.code, 0) << options << outcome.output;
  return nlohmann::json::parse(outcome.output, nullptr, false);
}

// Options for the whole decide how every level stores its weights.
TEST(CommandLineOptions, ReweightKeepsWeightsAsAsked) {
  const auto nearest = reweighted("--precision pure-bf16 --rounding nearest --classifier.lr 1e-3"),
             kahan = reweighted("--precision pure-bf16 --rounding kahan --classifier.lr 1e-3"),
             bits16 = reweighted("--precision split-bf16 --master-bits 16"),
             bits8 = reweighted("--precision split-bf16 --master-bits 8");
  EXPECT_NE(nearest["losses"], kahan["losses"]);
  EXPECT_LT(nearest["persistent_bytes"], kahan["persistent_bytes"]);
  EXPECT_LT(bits8["persistent_bytes"], bits16["persistent_bytes"]);
  // Also where one level alone is in that precision.
  EXPECT_LT(reweighted("--classifier.precision split-bf16 --master-bits 8")["persistent_bytes"],
            reweighted("--classifier.precision split-bf16")["persistent_bytes"]);
}

TEST(CommandLineOptions, ReweightEvaluatesWithinTheLeastBudget) {
  const auto free = reweighted(""), least = reweighted("--budget least");
  EXPECT_EQ(free["losses"], least["losses"]);
  EXPECT_LE(least["planned_peak_bytes"], free["planned_peak_bytes"]);
  EXPECT_EQ(least["budget_exceeded"], false);
}

// Options for all levels that several levels used to ignore.
TEST(CommandLineOptions, ReweightTakesTheLeastBudgetAndPinsThreads) {
  const Outcome outcome =
      run("train --workload reweight --hidden 16 --batch 20 --meta 100 --steps 2 --eval-batches 0 "
          "--budget least --pin-threads");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("threads"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace ebb::test
