// The command line and the training loop in everyday use: helpful errors, help with defaults,
// completion, evaluation during the run, early stopping, and comparing runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/command_line.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json result_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json 2>/dev/null | tail -n 1");
  EXPECT_EQ(outcome.code, 0) << arguments << outcome.output;
  return Json::parse(outcome.output, nullptr, false);
}

// The data in a page.
Json page_data(const fs::path& page) {
  const std::string text = contents(page), begin = "id=\"data\">", end = "</script>";
  const std::size_t at = text.find(begin) + begin.size();
  return Json::parse(text.substr(at, text.find(end, at) - at), nullptr, false);
}

const std::string tiny = "train --workload mlp --hidden 8 --batch 16 --threads 1 ";

// --- Errors

TEST(Everyday, NumbersAreToldInWords) {
  expect_usage_error("train --steps 0", "a whole number of at least 1 is expected, but \"0\" came");
  expect_usage_error("train --steps 2.5", "a whole number of at least 1");
  expect_usage_error("train --batch -3", "a whole number of at least 1");
  expect_usage_error("train --batch 99999999999999999999",
                     "a whole number of at least 1 is expected, but \"99999999999999999999\" is "
                     "too large: the most is about 9 · 10^18");
  expect_usage_error("plan --budget 5000PiB", "too large: less than 4096PiB");
  expect_usage_error("plan --accumulate 0", "1 to 999999");
  expect_usage_error("launch -n 9999 -- info", "a whole number from 1 to 1024");
  expect_usage_error("plan --ranks 0", "a whole number from 1 to 1000000");
  expect_usage_error("profile --steps 0", "from 1 to 10000");
  expect_usage_error("info --threads 0", "from 1 to 4096");
  expect_usage_error("train --warmup -1", "at least 0");
  expect_usage_error("train --workload reweight --classifier.unroll 0", "from 1 to 999999");
  expect_usage_error("train --workload reweight --classifier.accumulate 0", "from 1 to 999999");
  // A long word is not repeated in full.
  const std::string digits(309, '9');
  for (const char* option :
       {"train --steps ", "train --lr 0", "train --budget ", "train --recompute ",
        "train --workload ", "train --seed ", "ablate --budget ", "generate --budget ",
        "plan --classifier.budget ", "plan --method ", "plan --reweight.recompute "}) {
    const Outcome outcome = run(option + digits);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_LT(outcome.output.size(), 330u) << outcome.output;
  }
}

TEST(Everyday, MistypedWordsAreToldWhatIsNear) {
  expect_usage_error("train --stpes 3",
                     "there is no option --stpes of ebb train; did you mean --steps?");
  expect_usage_error("plan --worklod lm", "did you mean --workload?");
  expect_usage_error("trian", "did you mean train?");
  expect_usage_error("hepl", "did you mean help?");
  // Mistyped options are reported before the options that are then missing.
  expect_usage_error("fit --bugdet 1GiB", "did you mean --budget?");
  expect_usage_error("train --workload gtp2", "did you mean gpt2?");
  expect_usage_error("train --optimizer adma", "did you mean adam");
  expect_usage_error("train --precision bf61", "did you mean bf16?");
  expect_usage_error("train --schedule cosin", "did you mean cosine?");
  expect_usage_error("help train --workload restnet", "did you mean resnet?");
  expect_usage_error("train --config " + TemporaryFolder().path().string() + "/none.toml",
                     "none.toml");
  const TemporaryFolder folder;
  expect_usage_error("train --config " + folder.write("run.toml", "bacth = 3\n").string(),
                     "did you mean batch?");
  expect_usage_error("ablate --techniques bloks", "did you mean blocks?");
  expect_usage_error("ablate --device cdua", "did you mean cuda?");
  expect_usage_error("plan --device cup", "did you mean cpu?");
  expect_usage_error("plan --budget leats", "did you mean least?");
  expect_usage_error("plan --accumulate auot", "did you mean auto?");
  expect_usage_error("train --workload reweight --classifier.method dart", "did you mean darts?");
  expect_usage_error("train --workload reweight --reweight.optimizer adamv", "did you mean adam");
  expect_usage_error("train --workload reweight --classifier.recompute blcoks",
                     "did you mean blocks?");
  // No known option is close.
  const Outcome far = run("train --xyzzy");
  EXPECT_EQ(far.output.find("did you mean"), std::string::npos) << far.output;
}

TEST(Everyday, AnOptionWithoutItsValueAndAFileThatIsNotThere) {
  expect_usage_error("train --workload", "--workload needs a value, one of lm, gpt2, ");
  expect_usage_error("train --log", "--log needs a value: DIR");
  expect_usage_error("train --batch 8 --batch 4", "--batch is given 2 times; give it once");
  expect_usage_error("compare", "ebb compare needs RUN: Folders that ebb train --log has written");
  expect_usage_error("completion", "ebb completion needs ");
  expect_usage_error("fit --workload mlp", "ebb fit needs --budget SIZE: Memory limit");
  const TemporaryFolder folder;
  const std::string none = (folder / "none").string(), here = folder.path().string();
  expect_usage_error("train --data " + none, "--data: there is no file or folder " + none);
  expect_usage_error("train --config " + none, "--config: there is no file " + none);
  expect_usage_error("train --config " + here, "is a folder, not a file");
  expect_usage_error("eval --model " + none + " --text x", "--model: there is no folder " + none);
}

TEST(Everyday, DamagedResultsAreNoRawExceptions) {
  const TemporaryFolder folder;
  folder.write("results.json", "{\"format\": 1");
  const Outcome outcome = run("ablate --workload mlp --resume --out " + folder.path().string());
  EXPECT_NE(outcome.code, 0);
  for (const char* raw : {"json.exception", "map::at", "_M_range_check"})
    EXPECT_EQ(outcome.output.find(raw), std::string::npos) << outcome.output;
}

TEST(Everyday, AnAddressSpaceThatIsTooSmallIsToldAtOnce) {
  if (sanitized) GTEST_SKIP() << "sanitizers need address space of their own";
  const Outcome outcome = run("info 2>&1; ulimit -v 300000; '" EBB_PROGRAM "' info");
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.output.find("ulimit -v"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("300000 KiB"), std::string::npos) << outcome.output;
}

// --- Help

TEST(Everyday, HelpTellsTheDefaultsOfAWorkload) {
  const std::string help = run("help train --workload gpt2").output;
  for (const char* part : {"Defaults of the workload gpt2", "--layers                 12",
                           "--width                  768", "--lr                     0.0003"})
    EXPECT_NE(help.find(part), std::string::npos) << part << help;
  EXPECT_EQ(help.find("on the CPU"), std::string::npos);
  EXPECT_EQ(run("train --workload gpt2 --help").output, help);
  const std::string levels = run("help plan --workload reweight").output;
  EXPECT_NE(levels.find("--classifier.lr"), std::string::npos) << levels;
  // Each level has an optimizer of its own.
  EXPECT_EQ(levels.find("--optimizer  "), std::string::npos) << levels;
  EXPECT_EQ(run("help info").output.find("Defaults"), std::string::npos);
  // A verb with defaults of its own shows these, and those of its own workload.
  const std::string study = run("help ablate").output;
  EXPECT_NE(study.find("Defaults of the workload gpt2"), std::string::npos) << study;
  EXPECT_EQ(study.find("--steps                  "), std::string::npos) << study;
}

TEST(Everyday, CompletionKnowsVerbsOptionsAndValues) {
  const TemporaryFolder folder;
  const fs::path script = folder / "ebb.bash";
  ASSERT_EQ(run("completion bash > " + script.string()).code, 0);
  const auto completed = [&](const std::string& words) {
    const Outcome outcome =
        run("info >/dev/null; bash -c '. " + script.string() + "; COMP_WORDS=(" + words +
            "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ebb; echo \"${COMPREPLY[@]}\"'");
    return outcome.output;
  };
  EXPECT_EQ(completed("ebb tra"), "train\n");
  EXPECT_NE(completed("ebb train --ep").find("--epochs"), std::string::npos);
  EXPECT_EQ(completed("ebb train --workload gp"), "gpt2\n");
  EXPECT_EQ(completed("ebb train --schedule c"), "constant cosine\n");
  EXPECT_EQ(completed("ebb train --precision b"), "bf16\n");
  EXPECT_EQ(completed("ebb plan --recompute se"), "segment=all selective\n");
  EXPECT_EQ(completed("ebb train --optimizer adamw8"), "adamw8bit\n");
  EXPECT_EQ(completed("ebb train --workload reweight --classifier.method n"), "neumann\n");
  EXPECT_EQ(completed("ebb fit --budget l"), "\n");
  // As bash splits `--workload=gp` and `--workload=`.
  EXPECT_EQ(completed("ebb train --workload = gp"), "gpt2\n");
  EXPECT_NE(completed("ebb train --workload =").find("resnet"), std::string::npos);
  EXPECT_EQ(completed("ebb help train --workload rew"), "reweight\n");
  for (const char* shell : {"zsh", "fish"})
    EXPECT_NE(run(std::string("completion ") + shell).output.find("eval-every"), std::string::npos);
  // A flag takes no value.
  const std::string fish = run("completion fish").output;
  EXPECT_NE(fish.find("-l json -d 'Print one JSON document instead of text'\n"), std::string::npos);
  EXPECT_NE(fish.find("-l log -d"), std::string::npos);
  expect_usage_error("completion powershell", "none of bash, zsh, fish");
}

TEST(Everyday, TheManualHasEveryVerb) {
  const std::string manual = run("man").output;
  for (const char* verb : {"ablate", "train", "compare", "completion"})
    EXPECT_NE(manual.find(std::string("\n.B ") + verb + "\n"), std::string::npos) << verb;
  // Every option of a verb begins a paragraph.
  for (const char* option : {"\n.TP\n.B \\-\\-eval\\-every ", "\n.TP\n.B \\-h, \\-\\-help\n",
                             "\n.TP\n.B \\-\\-keep\\-best\n",
                             "\n.TP\n.B \\-\\-classifier.method, \\-\\-method ", "\n.TP\n.B runs "})
    EXPECT_NE(manual.find(option), std::string::npos) << option;
  EXPECT_NE(manual.find("; default: gpt2\n"), std::string::npos);
  EXPECT_EQ(manual.find(".B \n"), std::string::npos);
  EXPECT_EQ(manual.find(".B  "), std::string::npos);
}

// --- The training loop

TEST(Everyday, EpochsAreCountedInBatches) {
  const TemporaryFolder folder;
  std::string rows;
  for (int i = 0; i < 20; ++i)
    rows += "{\"text\":\"a b\",\"label\":" + std::to_string(i % 2) + "}\n";
  const std::string data = folder.write("texts.jsonl", rows).string(),
                    bert =
                        "train --workload bert --layers 1 --width 8 --heads 1 --sequence 4 "
                        "--vocabulary 16 --classes 2 --batch 4 --data " +
                        data;
  // 18 items to train on: 4 whole batches.
  EXPECT_EQ(result_of(bert + " --epochs 2")["steps"], 8);
  expect_usage_error(bert + " --epochs 2 --steps 3", "--steps and --epochs");
  const std::string config = folder.write("run.toml", "steps = 3\n").string();
  EXPECT_EQ(result_of(bert + " --epochs 1 --config " + config)["steps"], 4);
}

TEST(Everyday, EvaluationOnTheWayChangesNoBitAndKeepsTheBudget) {
  for (const std::string workload :
       {"--workload gpt2 --layers 1 --width 16 --heads 2 --sequence 16 --vocabulary 64 --batch 4 "
        "--dropout 0.1",
        "--workload reweight --hidden 8 --batch 20 --meta 100"}) {
    const TemporaryFolder folder;
    const auto with = [&](const std::string& name, const std::string& options) {
      return result_of("train --steps 6 --threads 1 --eval-batches 2 --budget least " + workload +
                       " --checkpoint " + (folder / name).string() + options);
    };
    const Json plain = with("plain", ""), judged = with("judged", " --eval-every 2");
    EXPECT_EQ(plain["losses"], judged["losses"]);
    EXPECT_EQ(plain["eval_loss"], judged["eval_loss"]);
    EXPECT_EQ(plain["planned_peak_bytes"], judged["planned_peak_bytes"]);
    EXPECT_EQ(judged["budget_exceeded"], false);
    ASSERT_EQ(judged["evaluations"].size(), 3u);
    EXPECT_EQ(judged["evaluations"][2]["loss"], judged["eval_loss"]);
  }
}

TEST(Everyday, RunsEndWithoutProgressAndKeepTheBest) {
  const TemporaryFolder folder;
  const std::string run_folder = (folder / "run").string();
  // A rate of 0 never lowers the loss: the first evaluation stays the best.
  const std::string flat = tiny + "--lr 0 --steps 50 --eval-every 2 --eval-batches 1 ";
  const Json stopped = result_of(flat + "--patience 3 --keep-best --checkpoint " + run_folder);
  EXPECT_EQ(stopped["stopped_early"], true);
  EXPECT_EQ(stopped["best_step"], 2);
  EXPECT_EQ(stopped["steps"], 8);  // the best, and three that are no better
  EXPECT_TRUE(fs::exists(folder / "run/best.safetensors"));
  // A resumed run continues the count.
  const std::string halves = (folder / "halves").string();
  const Json first = result_of(tiny +
                               "--lr 0 --steps 4 --eval-every 2 --eval-batches 1 --patience "
                               "3 --checkpoint " +
                               halves);
  EXPECT_EQ(first["stopped_early"], false);
  // A checkpoint before the next evaluation knows it too.
  result_of("train --threads 1 --steps 5 --resume " + halves);
  const Json second = result_of("train --threads 1 --steps 50 --resume " + halves);
  EXPECT_EQ(second["stopped_early"], true);
  EXPECT_EQ(second["steps"], 8);
  expect_usage_error(tiny + "--patience 2", "--eval-every");
  expect_usage_error(tiny + "--eval-every 2 --keep-best", "--checkpoint");
  expect_usage_error(tiny + "--eval-every 2 --eval-batches 0", "--eval-batches 0");
}

// If the run is too short for an evaluation, or its last step is not evaluated, the last step is
// evaluated too, and kept if it is the best.
TEST(Everyday, TheLastStepCanBeTheBest) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& name, const std::string& options) {
    return result_of(tiny + "--lr 0.01 --eval-batches 2 --keep-best --checkpoint " +
                     (folder / name).string() + " " + options);
  };
  const Json once = train("once", "--steps 6 --eval-every 100");
  EXPECT_EQ(once["best_step"], 6);
  EXPECT_EQ(once["evaluations"][0]["loss"], once["eval_loss"]);
  EXPECT_EQ(once["evaluations"].size(), 1u);
  EXPECT_TRUE(fs::exists(folder / "once/best.safetensors"));
  const Json twice = train("twice", "--steps 6 --eval-every 4");
  ASSERT_EQ(twice["evaluations"].size(), 2u);
  EXPECT_LT(twice["evaluations"][1]["loss"], twice["evaluations"][0]["loss"]) << "it learns";
  EXPECT_EQ(twice["best_step"], 6);
  // An additional evaluation that is not better does not count against a resumed run's patience.
  const Json flat = result_of(tiny +
                              "--lr 0 --steps 3 --eval-every 2 --eval-batches 1 --patience 2 "
                              "--keep-best --checkpoint " +
                              (folder / "flat").string());
  EXPECT_EQ(flat["best_step"], 2);
  const Json on = result_of("train --threads 1 --steps 50 --resume " + (folder / "flat").string());
  EXPECT_EQ(on["stopped_early"], true);
  EXPECT_EQ(on["steps"], 6);  // after those of steps 4 and 6
}

// --save writes the weights with the lowest test loss, not those of the last step.
TEST(Everyday, TheBestModelIsSaved) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& name, const std::string& options) {
    const std::string to = (folder / name).string();
    return result_of(
        "train --workload gpt2 --layers 1 --width 8 --heads 1 --sequence 8 --vocabulary 16 "
        "--batch 2 --threads 1 --lr 2 --eval-batches 1 --save " +
        to + "/model " + options);
  };
  const std::string run = " --checkpoint " + (folder / "best/run").string();
  const Json best = train("best", "--steps 12 --eval-every 2 --keep-best" + run);
  const std::int64_t step = best["best_step"];
  ASSERT_LT(step, 12) << "such a rate makes losses rise";
  EXPECT_EQ(best["saved_step"], step);
  train("until", "--steps " + std::to_string(step));
  train("last", "--steps 12");
  const auto weights = [&](const std::string& name) {
    return contents(folder / name / "model/model.safetensors");
  };
  EXPECT_EQ(weights("best"), weights("until"));
  EXPECT_NE(weights("best"), weights("last"));
}

TEST(Everyday, RunsSideBySide) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& name, const std::string& options) {
    return result_of(tiny + "--steps 4 --eval-every 2 --eval-batches 1 --log " +
                     (folder / name).string() + options);
  };
  const Json a = train("a", ""), b = train("b", " --lr 0.01");
  const std::string both = (folder / "a").string() + " " + (folder / "b").string();
  const Json compared = result_of("compare " + both);
  ASSERT_EQ(compared.size(), 2u);
  EXPECT_EQ(compared[0]["test_loss"], a["eval_loss"]);
  EXPECT_EQ(compared[1]["test_loss"], b["eval_loss"]);
  EXPECT_EQ(compared[0]["steps"], 4);
  EXPECT_EQ(compared[0]["planned_peak_bytes"], a["planned_peak_bytes"]);
  const std::string table = run("compare " + both).output;
  EXPECT_NE(table.find("last loss"), std::string::npos) << table;
  EXPECT_NE(run(tiny + "--steps 2 --eval-batches 1 2>/dev/null")
                .output.find(", over the first 16 of 2000 items\n"),
            std::string::npos);
  // Byte counts next to each other have the same unit.
  fs::copy(folder / "a", folder / "larger");
  Json facts = Json::parse(contents(folder / "a/run.json"));
  facts["planned_peak_bytes"] = std::int64_t{3} << 30;
  folder.write("larger/run.json", facts.dump());
  const std::string sizes =
      run("compare " + (folder / "a").string() + " " + (folder / "larger").string()).output;
  EXPECT_NE(sizes.find("3072.00 MiB"), std::string::npos) << sizes;
  EXPECT_EQ(sizes.find("KiB"), std::string::npos) << sizes;
  // The rate is all that differs.
  EXPECT_EQ(compared[1]["differing_options"], Json({{"lr", 0.01}}));
  EXPECT_NE(table.find("--lr"), std::string::npos) << table;
  EXPECT_EQ(table.find("--batch"), std::string::npos) << table;
  const Json page = page_data(folder / "a/summary.html");
  ASSERT_EQ(page["runs"].size(), 1u);
  const Json& curves = page["runs"][0]["curves"];
  EXPECT_EQ(curves["loss"]["steps"], Json({1, 2, 3, 4}));
  EXPECT_EQ(curves["loss"]["values"], a["losses"]);
  EXPECT_EQ(curves["test_loss"]["steps"], Json({2, 4}));
  EXPECT_EQ(curves["rate"]["values"].size(), 4u);
  EXPECT_EQ(curves["step_ms"]["seconds"].size(), 4u);
  EXPECT_EQ(page["runs"][0]["peak_by_category"], a["peak_by_category"]);
  ASSERT_EQ(run("compare " + both + " --page " + (folder / "both.html").string()).code, 0);
  EXPECT_EQ(page_data(folder / "both.html")["runs"].size(), 2u);
  // A run that is still going on has a log, and no more.
  fs::remove(folder / "b/run.json");
  EXPECT_EQ(result_of("compare " + both)[1]["over"], false);
  folder.write("b/log.jsonl", "{\"step\":1,\"tag\":\"loss\"}\n");
  expect_failure("compare " + both, 1, "log.jsonl: line 1");
  expect_failure("compare " + folder.path().string(), 1, "log.jsonl");
}

// A log folder that is used again shows only the last run that used it.
TEST(Everyday, ALogFolderTellsItsLastRun) {
  const TemporaryFolder folder;
  const std::string log = (folder / "log").string(), kept = (folder / "run").string();
  (void)result_of(tiny + "--steps 6 --eval-every 2 --eval-batches 1 --log " + log);
  const Json shorter = result_of(tiny + "--steps 3 --lr 0.01 --eval-batches 0 --log " + log +
                                 " --checkpoint " + kept);
  const Json curves = page_data(folder / "log/summary.html")["runs"][0]["curves"];
  EXPECT_EQ(curves["loss"]["steps"], Json({1, 2, 3}));
  EXPECT_EQ(curves["loss"]["values"], shorter["losses"]);
  EXPECT_FALSE(curves.contains("test_loss"));
  // A resumed run keeps the records up to its checkpoint.
  (void)result_of("train --steps 5 --resume " + kept);
  EXPECT_EQ(page_data(folder / "log/summary.html")["runs"][0]["curves"]["loss"]["steps"],
            Json({1, 2, 3, 4, 5}));
  // run.json belongs to a finished run, not to one that has begun since.
  EXPECT_EQ(result_of("compare " + log + " " + log)[0]["over"], true);
  std::ofstream(folder / "log/log.jsonl", std::ios::app)
      << "{\"step\":0,\"tag\":\"begin\",\"text\":\"another\"}\n"
      << "{\"step\":1,\"tag\":\"loss\",\"value\":4}\n";
  const Json begun = result_of("compare " + log + " " + log)[0];
  EXPECT_EQ(begun["over"], false);
}

TEST(Everyday, ReweightTellsEveryClassAndItsBaseline) {
  const std::string reweight =
      "train --workload reweight --hidden 8 --batch 20 --meta 100 --steps 5 --eval-batches 4 "
      "--threads 1 ";
  const TemporaryFolder folder;
  const std::string logs = (folder / "weighted").string() + " " + (folder / "plain").string();
  const Json weighted = result_of(reweight + "--log " + (folder / "weighted").string()),
             plain = result_of(reweight + "--unweighted --log " + (folder / "plain").string());
  ASSERT_EQ(weighted["eval_accuracy_by_class"].size(), 10u);
  EXPECT_EQ(plain["eval_accuracy_by_class"].size(), 10u);
  EXPECT_NE(weighted["losses"], plain["losses"]);
  EXPECT_EQ(plain["levels"].size(), 1u);
  // Accuracy class by class; the losses and rates of each level are on the page.
  const Json compared = result_of("compare " + logs);
  EXPECT_EQ(compared[0]["test_accuracy_by_class"], weighted["eval_accuracy_by_class"]);
  EXPECT_EQ(compared[1]["differing_options"]["unweighted"], true);
  EXPECT_NE(run("compare " + logs).output.find("accuracy, class 9"), std::string::npos);
  const Json page = page_data(folder / "weighted/summary.html")["runs"][0];
  EXPECT_EQ(page["accuracy_by_class"], weighted["eval_accuracy_by_class"]);
  EXPECT_EQ(page["by_frequency"], true);
  for (const char* tag : {"loss", "rate", "reweight/loss", "reweight/rate"})
    EXPECT_TRUE(page["curves"].contains(tag)) << tag;
  expect_usage_error(reweight + "--unweighted --reweight.lr 1", "unweighted");
  expect_usage_error(tiny + "--unweighted", "reweight");
}

// The largest batch of several levels lies between one that fits and one that does not.
TEST(Everyday, FitFindsTheLargestBatchOfSeveralLevels) {
  const std::string sizes = " --workload reweight --hidden 16 --threads 1 --budget 6MiB";
  const Outcome found = run("fit" + sizes + " --most 400 --points 2 --json 2>/dev/null");
  ASSERT_EQ(found.code, 0) << found.output;
  const auto largest = nlohmann::json::parse(found.output).at("largest").get<int>();
  EXPECT_GT(largest, 1);
  EXPECT_LT(largest, 400);
  const auto plan = [&](int batch) {
    return run("plan" + sizes + " --batch " + std::to_string(batch) + " 2>&1");
  };
  EXPECT_EQ(plan(largest).code, 0);
  const Outcome more = plan(largest + 1);
  EXPECT_EQ(more.code, 1);
  EXPECT_NE(more.output.find("cannot be kept"), std::string::npos) << more.output;
}

TEST(Everyday, AProfileOfSeveralLevelsKnowsItsBudget) {
  const TemporaryFolder folder;
  const Json profile = result_of(
      "profile --workload reweight --hidden 8 --batch 20 --meta 100 --threads 1 --steps 1 --budget "
      "3MiB --out " +
      folder.path().string());
  EXPECT_EQ(profile.at("rows").at(0).at("budget_bytes"), 3 << 20);  // the line of the page
  // Tensors that no module makes are named by their level.
  const Json names = page_data(folder / "report.html").at("timelines").at("reweight").at("names");
  for (const char* name : {"classifier, input 0", "reweight, input 0", "layers.0"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name << names;
}

TEST(Everyday, TheVocabularyIsKeptBesideCheckpoints) {
  const TemporaryFolder folder;
  const std::string text = folder.write("input.txt", std::string(4000, 'x')).string();
  result_of(
      "train --workload gpt2 --layers 1 --width 8 --heads 1 --sequence 8 --batch 2 --steps 1 "
      "--eval-batches 0 --data " +
      text + " --checkpoint " + (folder / "run").string());
  EXPECT_TRUE(fs::exists(folder / "run/tokenizer.json"));
}

}  // namespace
}  // namespace ebb::test
