// Adapters and weights in few bits from the command line, on the small golden folders.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/command_line.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;

const fs::path models = fs::path(EBB_GOLDEN_FOLDER) / "models",
               adapters = fs::path(EBB_GOLDEN_FOLDER) / "adapters";

// A file of tokens with a pattern that can be learned.
fs::path token_file(const TemporaryFolder& folder) {
  std::ofstream file(folder / "tokens.bin", std::ios::binary);
  for (std::int32_t i = 0; i < 600; ++i) {
    const std::int32_t token = i % 7 * 3;
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return folder / "tokens.bin";
}

// The last line of the output; what comes before is progress.
nlohmann::json json_of(const std::string& arguments) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
  std::string text = outcome.output;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const auto parsed =
      nlohmann::json::parse(text.substr(text.find_last_of("\n\r") + 1), nullptr, false);
  return parsed.is_discarded() ? nlohmann::json::object() : parsed;
}

TEST(CommandLineAdapters, AreTrainedSavedAndEvaluated) {
  const TemporaryFolder folder;
  const std::string data = token_file(folder).string();
  for (const std::string name : {"gpt2", "llama"}) {
    const std::string base = (models / name).string(), out = (folder / name).string();
    const std::string train =
        "train --model " + base + " --data " + data +
        " --sequence 8 --batch 4 --steps 40 --lr 0.02 --lora 4 --base nf4 --lora-dropout 0.05" +
        (name == "gpt2" ? " --lora-modules \"*.c_attn,*.c_fc\"" : "");
    const nlohmann::json trained = json_of(train + " --save " + out);
    EXPECT_EQ(trained.value("planned_peak_bytes", 0), trained.value("measured_peak_bytes", -1))
        << trained;
    EXPECT_TRUE(fs::exists(folder / name / "adapter_model.safetensors"));
    EXPECT_FALSE(fs::exists(folder / name / "model.safetensors"));
    const auto loss = [&](const std::string& options) {
      return json_of("eval --tokens " + data + " --sequence 8 " + options).value("loss", -1.0);
    };
    const double before = loss("--model " + base),
                 packed = loss("--model " + base + " --base nf4 --adapter " + out);
    EXPECT_LT(packed, before - 0.3) << name;
    // The same run, merged into a plain folder: the loss of the packed base with its adapter.
    (void)json_of(train + " --merge --save " + out + "-merged");
    EXPECT_NEAR(loss("--model " + out + "-merged"), packed, 1e-4) << name;
  }
}

TEST(CommandLineAdapters, AnAdapterIsTrainedOn) {
  const TemporaryFolder folder;
  const nlohmann::json run =
      json_of("train --model " + (models / "llama").string() + " --data " +
              token_file(folder).string() + " --sequence 8 --batch 2 --steps 2 --adapter " +
              (adapters / "llama").string() + " --save " + (folder / "out").string());
  EXPECT_TRUE(fs::exists(folder / "out" / "adapter_config.json")) << run;
}

TEST(CommandLineAdapters, ResumedRunsGiveTheSameBits) {
  const TemporaryFolder folder;
  const std::string train = "train --model " + (models / "gpt2").string() + " --data " +
                            token_file(folder).string() +
                            " --sequence 8 --batch 2 --lora 2 --base int4 --lora-dropout 0.1";
  const std::string kept = (folder / "kept").string();
  const auto whole = json_of(train + " --steps 6");
  (void)json_of(train + " --steps 3 --checkpoint " + kept);
  const auto rest = json_of("train --resume " + kept + " --steps 6");
  ASSERT_TRUE(whole.contains("losses") && rest.contains("losses"));
  EXPECT_EQ(whole["losses"].back(), rest["losses"].back());
}

// The settings of an adapter's folder, alpha among them, are not in the checkpoint's tensors.
TEST(CommandLineAdapters, AnotherAdapterIsNoticedOnResuming) {
  const TemporaryFolder folder;
  fs::copy(adapters / "gpt2", folder / "own", fs::copy_options::recursive);
  const std::string own = (folder / "own").string(), kept = (folder / "kept").string(),
                    resume = "train --resume " + kept;
  (void)json_of("train --model " + (models / "gpt2").string() + " --data " +
                token_file(folder).string() +
                " --sequence 8 --batch 2 --eval-batches 0 --steps 1 --adapter " + own +
                " --checkpoint " + kept);
  EXPECT_EQ(run(resume + " --steps 2").code, 0);
  expect_usage_error(resume + " --steps 3 --adapter " + (adapters / "gpt2-after").string(),
                     "adapter was (adapter adapter_model.safetensors)");
  std::ifstream config(folder / "own/adapter_config.json");
  nlohmann::json settings = nlohmann::json::parse(config);
  settings["lora_alpha"] = 70;
  folder.write("own/adapter_config.json", settings.dump());
  expect_usage_error(resume + " --steps 3", "--change adapter");
  EXPECT_EQ(run(resume + " --steps 3 --change adapter").code, 0);
}

// Planning needs no weights: config.json is enough.
TEST(CommandLineAdapters, FoldersWithoutWeightsCanBePlanned) {
  const TemporaryFolder folder;
  fs::copy(models / "llama" / "config.json", folder.path());
  const std::string options = " --model " + folder.path().string() + " --sequence 8 --batch 2";
  const auto plain = json_of("plan" + options),
             packed = json_of("plan" + options + " --lora 2 --base nf4");
  EXPECT_LT(packed.at("planned_peak_bytes"), plain.at("planned_peak_bytes"));
  expect_failure("train" + options + " --data " + token_file(folder).string() + " --steps 1", 1,
                 "model.safetensors");
}

TEST(CommandLineAdapters, OptionsWithoutEffectAreErrors) {
  const TemporaryFolder folder;
  const std::string model = "plan --model " + (models / "llama").string();
  expect_usage_error(model + " --base nf4", "lora");
  expect_usage_error(model + " --lora-alpha 3", "lora");
  expect_usage_error(model + " --lora 2 --adapter " + (adapters / "llama").string(), "adapter");
  expect_usage_error("plan --workload mlp --lora 2", "--lora does not apply to mlp");
  expect_usage_error("plan --workload llama --merge --lora 2", "--merge");
  expect_usage_error(model + " --lora 2 --base int3", "int3");
  for (const std::string& trained :
       {std::string("--lora 2"), "--adapter " + (adapters / "llama").string()})
    expect_usage_error(model + " --sparsity-pattern 2:4 --sparsity-until 5 " + trained,
                       "--sparsity is for trained weights");
  expect_failure(model + " --lora 2 --lora-modules c_attn", 1, "no linear layer fits \"c_attn\"");
  const std::string tokens = " --data " + (models / "tokens.bin").string() + " --sequence 8";
  expect_usage_error("train --model " + (models / "llama").string() + tokens + " --lora 2 --merge",
                     "add --save DIR");
  // What PEFT's format has no place for is told before training.
  const std::string neox = "train --model " + (models / "../families/gpt_neox").string() + tokens +
                           " --lora 2 --eval-batches 0 --steps 1 --save " +
                           (folder / "made").string();
  expect_failure(neox, 1, "query_key_value");
  EXPECT_FALSE(std::filesystem::exists(folder / "made"));
  EXPECT_EQ(run(neox + " --merge").code, 0);
}

}  // namespace
}  // namespace ebb::test
