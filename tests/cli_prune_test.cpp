// `ebb prune` as a user meets it.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/command_line.h"
#include "support/model_folders.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

std::string model(const char* name) { return " --model " + (golden_models / name).string(); }

nlohmann::json prune(const std::string& arguments) {
  const Outcome outcome = run("prune" + arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return nlohmann::json::parse(outcome.output);
}

// Folders written by `ebb prune` have the same losses in transformers, in float64.
TEST(CommandLinePrune, LossesOfPrunedFoldersAreThoseOfTransformers) {
  const TemporaryFolder folder;
  const auto golden = read_json(fs::path(EBB_GOLDEN_FOLDER) / "pruning/weights.json").at("folders");
  for (const auto& row : golden) {
    const std::string options = row.at("options").get<std::string>();
    const auto result = prune(model(row.at("model").get<std::string>().c_str()) + " " + options +
                              " --save " + (folder / "made").string());
    EXPECT_TRUE(result.at("loads_in_transformers").get<bool>()) << options;
    EXPECT_NEAR(folder_loss(folder / "made", f32), row.at("loss").get<double>(), 2e-5) << options;
  }
}

// GPTQ on the command line: other codes than plain rounding's, in the same bytes.
TEST(CommandLinePrune, EvaluationCalibratesPackedWeights) {
  const std::string tokens = (golden_models / "tokens.bin").string();
  const auto evaluate = [&](const std::string& options) {
    const Outcome outcome = run("eval" + options + " --tokens " + tokens + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output);
  };
  for (const char* name : {"gpt2", "llama"}) {
    const auto dense = evaluate(model(name)), plain = evaluate(model(name) + " --base int4"),
               chosen = evaluate(model(name) + " --base int4 --calibrate " + tokens);
    EXPECT_NE(chosen.at("loss"), plain.at("loss")) << name;
    EXPECT_NEAR(chosen.at("loss").get<double>(), dense.at("loss").get<double>(), 0.1) << name;
    EXPECT_EQ(chosen.at("planned_peak_bytes"), plain.at("planned_peak_bytes")) << name;
  }
  expect_usage_error("eval" + model("gpt2") + " --tokens " + tokens + " --calibrate " + tokens,
                     "--base");
  expect_usage_error(
      "eval" + model("bert") + " --text " + tokens + " --base int4 --calibrate " + tokens,
      "GPT-2 and Llama");
}

TEST(CommandLinePrune, TellsWhatWentAndWhatItSaves) {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  const auto result = prune(model("gpt2") + " --keep 0.5 --score taylor --data " +
                            (golden_models / "tokens.bin").string() + " --samples 6 --save " + at);
  EXPECT_EQ(result.at("parameters").at("before"), 7824);
  // Half of the heads and of the neurons of each layer: 2 · (2·32·16 + 32 + 3·8·16 + 3·8 + 8·16).
  EXPECT_EQ(result.at("parameters").at("after"), 7824 - 2 * (1024 + 32 + 384 + 24 + 128));
  EXPECT_EQ(result.at("bytes").at("after"), 4 * result.at("parameters").at("after").get<int>());
  EXPECT_LT(result.at("planned_step").at("after").at("peak"),
            result.at("planned_step").at("before").at("peak"));
  EXPECT_EQ(result.at("removed").size(), 4u);
  EXPECT_EQ(result.at("loss").at("tokens"), 6 * 16);
  EXPECT_FALSE(result.at("loads_in_transformers").get<bool>());
  EXPECT_NE(result.at("why_not").get<std::string>().find("n_embd"), std::string::npos);
  // The folder has the reported loss, and can be pruned, trained and exported again.
  const auto again =
      prune(model("gpt2") + " --keep 1 --data " + (golden_models / "tokens.bin").string() +
            " --samples 6 --save " + at + "/same");
  EXPECT_EQ(again.at("loss").at("before"), result.at("loss").at("before"));
  EXPECT_EQ(again.at("loss").at("after"), again.at("loss").at("before"));
  EXPECT_EQ(run("export --model " + at + " --onnx " + at + "/m.onnx").code, 0);
  EXPECT_EQ(run("eval --model " + at + " --tokens " + (golden_models / "tokens.bin").string()).code,
            0);
}

TEST(CommandLinePrune, SparseMethodsKeepTheShapes) {
  const TemporaryFolder folder;
  for (const char* method : {"magnitude", "wanda", "sparsegpt"}) {
    const auto result =
        prune(model("gpt2") + " --pattern 2:4 --method " + method + " --data " +
              (golden_models / "tokens.bin").string() + " --save " + (folder / "made").string());
    EXPECT_EQ(2 * result.at("zeros").get<int>(), result.at("weights").get<int>()) << method;
    EXPECT_EQ(result.at("weights"), 6144);
    EXPECT_EQ(result.at("parameters").at("after"), 7824);
  }
}

TEST(CommandLinePrune, HalfPrecisionStays) {
  const TemporaryFolder folder;
  const FolderCopy copy("llama");
  io::save(*io::load_llama(copy.path(), device::cpu, bf16), folder / "half");
  const auto result = prune(" --model " + (folder / "half").string() + " --keep 0.5 --save " +
                            (folder / "made").string());
  EXPECT_EQ(result.at("dtype"), "bfloat16");
  EXPECT_EQ(result.at("bytes").at("after"), 2 * result.at("parameters").at("after").get<int>());
  const io::SafetensorsFile file(folder / "made" / "model.safetensors");
  for (const auto& [name, entry] : file.entries()) EXPECT_EQ(entry.type.dtype, bf16) << name;
}

TEST(CommandLinePrune, BadInput) {
  const TemporaryFolder folder;
  const std::string save = " --save " + (folder / "made").string(),
                    gpt2 = "prune" + model("gpt2") + save;
  for (const char* keep : {"0", "1.5", "-0.5", "nan", "half"})
    expect_usage_error(gpt2 + " --keep " + keep, "--keep: a share above 0 and at most 1");
  expect_usage_error(gpt2 + " --keep 0.9 --structure neurons --multiple 1000", "removes nothing");
  expect_usage_error(gpt2 + " --sparsity 0.5 --budget 1GiB --overcommit", "--overcommit");
  expect_usage_error(gpt2 + " --sparsity 1", "--sparsity: a share above 0 and below 1");
  expect_usage_error(gpt2 + " --pattern 3:2", "keeps N of every M");
  expect_usage_error(gpt2, "one of --keep, --sparsity, --pattern and --bits");
  expect_usage_error(gpt2 + " --keep 0.5 --pattern 2:4",
                     "one of --keep, --sparsity, --pattern and --bits");
  expect_usage_error(gpt2 + " --keep 0.5 --score taylor", "--score taylor needs text");
  expect_usage_error(gpt2 + " --sparsity 0.5 --method wanda", "--method wanda needs text");
  expect_usage_error(gpt2 + " --keep 0.5 --score size", "magnitude, taylor or activation");
  expect_usage_error(gpt2 + " --sparsity 0.5 --method size", "magnitude, wanda or sparsegpt");
  expect_usage_error(gpt2 + " --keep 0.5 --structure heads,toes", "\"toes\" came");
  expect_usage_error(gpt2 + " --keep 0.5 --method wanda", "--method is for --sparsity");
  expect_usage_error(gpt2 + " --sparsity 0.5 --score taylor", "--score is for --keep");
  expect_usage_error(gpt2 + " --sparsity 0.5 --sequence 4", "--sequence is for the windows of");
  expect_failure(gpt2 + " --keep 0.5 --structure channels", 1, "has no channels");
  expect_failure("prune" + model("bert") + save + " --keep 0.5 --structure heads", 1,
                 "heads of a BERT model cannot be removed");
  expect_failure("prune" + model("bert") + save + " --keep 0.5 --structure blocks", 1,
                 "no block of the model can be removed");
  // Without a classifier, the head for masked words is kept.
  const Outcome masked =
      run("prune --model " + (golden_models / "../families/bert_masked").string() +
          " --keep 0.5 --save " + (folder / "masked").string());
  EXPECT_EQ(masked.code, 0) << masked.output;
  std::ofstream(folder / "text.txt") << "some text";
  expect_failure(gpt2 + " --keep 0.5 --data " + (folder / "text.txt").string(), 1,
                 "needs a tokenizer.json");
  expect_usage_error(gpt2 + " --sparsity 0.5 --multiple 4", "--multiple is for neurons");
  expect_usage_error(gpt2 + " --keep 0.5 --structure heads --multiple 4", "--multiple is for");
  for (const char* option : {" --samples 3", " --batch 2"})
    expect_usage_error(gpt2 + " --keep 0.5" + option, "for the windows of --data");
  for (const char* name : {"gpt2", "bert"})
    expect_usage_error("prune" + model(name) + save + " --keep 0.5 --sequence 17",
                       "at most the model's context, 16");
  EXPECT_FALSE(fs::exists(folder / "made"));
  // Refused before the work, not after it.
  std::ofstream(folder / "file") << "a file";
  expect_failure("prune" + model("gpt2") + " --keep 0.5 --save " + (folder / "file/made").string(),
                 1, "cannot make the folder");
}

// Weights of several types are not rounded to the type of one of them.
TEST(CommandLinePrune, WeightsThatAreNotFiniteAreNamed) {
  FolderCopy copy("gpt2");
  copy.change_tensors([](FolderCopy::Tensors& all) {
    Tensor& weight = all.at("transformer.h.1.ln_2.weight");
    weight = full(weight.shape(), std::numeric_limits<double>::quiet_NaN(), weight.dtype());
  });
  const std::string of = " --model " + copy.path().string(),
                    tokens = (golden_models / "tokens.bin").string(),
                    why = "because \"transformer.h.1.ln_2.weight\" is not finite";
  const TemporaryFolder folder;
  const fs::path made = folder / "made";
  const std::string prune = "prune" + of + " --save " + made.string() + " --data " + tokens;
  for (const char* json : {"", " --json"}) {
    expect_failure("eval" + of + " --tokens " + tokens + json, 1, why);
    expect_failure(prune + " --sparsity 0.5" + json, 1, why);
    expect_failure(prune + " --keep 0.5" + json, 1, why);
  }
  for (const char* how : {" --sparsity 0.5 --method wanda", " --bits int4"})
    expect_failure(prune + how, 1, "\"transformer.h.1.ln_2.weight\" of ");
  EXPECT_FALSE(fs::exists(made / "model.safetensors"));
}

TEST(CommandLinePrune, MixedTypesLoseNoDigits) {
  const TemporaryFolder folder;
  FolderCopy copy("gpt2");
  copy.change_tensors([](FolderCopy::Tensors& t) {
    t.at("transformer.wte.weight") = eval(cast(t.at("transformer.wte.weight"), bf16));
  });
  const auto result = prune(" --model " + copy.path().string() + " --sparsity 0.001 --save " +
                            (folder / "made").string());
  EXPECT_EQ(result.at("dtype"), "float32");
  EXPECT_NEAR(folder_loss(folder / "made", f32), folder_loss(copy.path(), f32), 1e-3);
}

}  // namespace
}  // namespace ebb::test
