// `ebb generate` and `ebb fit --generate` as a user starts them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "ebb/io/hugging_face.h"
#include "ebb/io/safetensors.h"
#include "ebb/models/gpt2.h"
#include "support/command_line.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"
#include "workloads/text_files.h"

namespace ebb::test {
namespace {

// Ids 1 to 4 are words; 5 is the unknown word.
constexpr const char* words = R"({
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
  "model": {"type": "WordPiece", "unk_token": "?",
            "vocab": {"sea": 0, "to": 1, "be": 2, "or": 3, "not": 4, "?": 5}}})";

class CliGenerate : public ::testing::Test {
 protected:
  void SetUp() override {
    models::Gpt2Config config{
        .vocabulary = 6, .context = 24, .layers = 1, .heads = 2, .width = 12, .tied = false};
    const nn::MakeScope scope(device::cpu, f32);
    const models::Gpt2 model(config);
    io::save(model, folder / "model");
  }
  std::string model() const { return "--model " + (folder / "model").string() + " "; }
  void add_tokenizer() { folder.write("model/tokenizer.json", words); }
  static nlohmann::json report(const std::string& arguments) {
    const Outcome done = run("generate " + arguments + " --json");
    EXPECT_EQ(done.code, 0) << done.output;
    return nlohmann::json::parse(lines(done.output).back());
  }
  TemporaryFolder folder;
};

TEST_F(CliGenerate, GivesIdsAndTheirMemory) {
  const auto one = report(model() + "--prompt-ids 5,2,1 --max-tokens 7 --ignore-end");
  ASSERT_EQ(one.at("ids").size(), 1u);
  EXPECT_EQ(one["ids"][0].size(), 7u);
  EXPECT_EQ(one.at("text").size(), 0u);  // no tokenizer
  EXPECT_GT(one.at("tokens_per_s").get<double>(), 0.0);
  EXPECT_EQ(one.at("planned_peak_bytes"), one.at("measured_peak_bytes"));

  // The same prompt among others, two at a time, within a budget.
  const std::string file =
      folder.write("p.jsonl", "{\"ids\": [1]}\n{\"ids\": [5, 2, 1]}\n{\"ids\": [3, 3]}\n").string();
  const auto many = report(model() + "--batch " + file +
                           " --sequences 2 --max-tokens 7 --budget 1MiB --ignore-end");
  ASSERT_EQ(many.at("ids").size(), 3u);
  EXPECT_EQ(many["ids"][1], one["ids"][0]);
  EXPECT_EQ(many.at("planned_peak_bytes"), many.at("measured_peak_bytes"));
}

TEST_F(CliGenerate, FewerBitsTakeLessMemory) {
  models::Gpt2Config config{.vocabulary = 6, .context = 24, .layers = 1, .heads = 2, .width = 256};
  const nn::MakeScope scope(device::cpu, f32);
  io::save(models::Gpt2(config), folder / "wide");
  const std::string start =
      "--model " + (folder / "wide").string() + " --prompt-ids 1,2 --max-tokens 4 --ignore-end";
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (const char* bits : {"", " --bits 8", " --bits 4"}) {
    const auto done = report(start + bits);
    EXPECT_EQ(done.at("ids")[0].size(), 4u);
    EXPECT_EQ(done.at("planned_peak_bytes"), done.at("measured_peak_bytes"));
    EXPECT_LT(done.at("planned_peak_bytes").get<std::int64_t>(), before) << bits;
    before = done["planned_peak_bytes"];
  }
  expect_usage_error("generate " + start + " --bits 3", "--bits");
}

TEST_F(CliGenerate, KeysAndValuesInEightBits) {
  models::Gpt2Config config{.vocabulary = 6, .context = 64, .layers = 1, .heads = 2, .width = 256};
  const nn::MakeScope scope(device::cpu, f32);
  io::save(models::Gpt2(config), folder / "wide");
  const std::string folder_option = "--model " + (folder / "wide").string() + " ";
  const std::string start = folder_option + "--prompt-ids 1,2 --max-tokens 50 --ignore-end";
  const auto wide = report(start), narrow = report(start + " --cache-bits 8");
  EXPECT_EQ(narrow.at("ids")[0].size(), 50u);
  EXPECT_EQ(narrow.at("planned_peak_bytes"), narrow.at("measured_peak_bytes"));
  EXPECT_LT(narrow["planned_peak_bytes"], wide["planned_peak_bytes"]);
  expect_usage_error("generate " + start + " --cache-bits 4", "--cache-bits");

  const std::string fit = "fit --generate " + folder_option + "--budget 8MiB --json";
  const auto sequences = [&](const std::string& options) {
    const Outcome done = run(fit + options);
    EXPECT_EQ(done.code, 0) << done.output;
    return nlohmann::json::parse(lines(done.output).back()).at("sequences").get<std::int64_t>();
  };
  EXPECT_GT(sequences(" --cache-bits 8"), sequences(""));
  EXPECT_GT(sequences(" --bits 8"), 0);
  expect_usage_error("fit --budget 1MiB --cache-bits 8", "--generate");
}

TEST_F(CliGenerate, ReadsAndWritesText) {
  add_tokenizer();
  const std::string file = folder.write("p.txt", "to be\r\nor not to\n").string();
  const auto done =
      report(model() + "--batch " + file + " --max-tokens 5 --temperature 3 --seed 4");
  ASSERT_EQ(done.at("text").size(), 2u);
  EXPECT_FALSE(done["text"][0].get<std::string>().empty());
  const Outcome streamed =
      run("generate " + model() + "--prompt 'to be' --max-tokens 5 --temperature 3 --seed 4");
  const std::string first = done["text"][0];
  EXPECT_EQ(lines(streamed.output).front(), first) << streamed.output;
  // Every text ends before a word that is in it.
  const std::string& text = first;
  const std::string word = text.substr(text.rfind(' ') + 1);
  const auto stopped = report(
      model() + "--prompt 'to be' --max-tokens 5 --temperature 3 --seed 4 --stop '" + word + "'");
  EXPECT_EQ(stopped["text"][0].get<std::string>().find(word), std::string::npos);
  EXPECT_EQ(stopped["text"][0], text.substr(0, text.find(word)));
}

// Tokens that are bytes, drawn from a model that knows nothing, often end inside a character.
TEST_F(CliGenerate, StreamsAlsoTheLastIncompleteCharacter) {
  models::Gpt2Config config{.vocabulary = 256, .context = 24, .layers = 1, .heads = 1, .width = 4};
  const nn::MakeScope scope(device::cpu, f32);
  io::save(models::Gpt2(config), folder / "model");
  folder.write("model/tokenizer.json", workloads::byte_tokenizer_json());
  int incomplete = 0;
  for (int seed = 0; seed < 4; ++seed) {
    const std::string drawn =
        model() + "--prompt a --max-tokens 6 --seed " + std::to_string(seed) + " ";
    const std::string text = report(drawn)["text"][0];
    incomplete += text.ends_with("\xEF\xBF\xBD") ? 1 : 0;
    const std::string streamed = run("generate " + drawn).output;
    EXPECT_TRUE(streamed.starts_with(text + "\n")) << seed << ": " << streamed;
  }
  EXPECT_GT(incomplete, 0);
}

TEST_F(CliGenerate, Errors) {
  const std::string start = "generate " + model();
  expect_usage_error(start + "--max-tokens 3", "--prompt");
  expect_usage_error(start + "--prompt 'to be' --max-tokens 3", "tokenizer.json");
  expect_usage_error(start + "--prompt-ids 1,,2 --max-tokens 3", "1,,2");
  expect_failure(start + "--prompt-ids 1,100000 --max-tokens 3", 1,
                 "prompt 1 has the id 100000, outside the vocabulary");
  expect_usage_error(start + "--prompt-ids 1 --max-tokens 3 --top-k 0", "--top-k");
  expect_usage_error(start + "--prompt-ids 1 --max-tokens 3 --top-p 1.5", "--top-p");
  expect_usage_error(start + "--prompt-ids 1 --max-tokens 3 --temperature 0", "--temperature");
  expect_usage_error(start + "--prompt-ids 1 --max-tokens 3 --greedy --top-k 2", "--greedy");
  expect_failure(start + "--prompt-ids 6 --max-tokens 3", 1, "id 6");
  expect_failure(start + "--prompt-ids 1 --max-tokens 3 --budget 4KiB", 1, "budget");
  std::string ids = "1";
  for (int i = 0; i < 23; ++i) ids += ",1";
  expect_failure(start + "--prompt-ids " + ids + " --max-tokens 3", 1, "24 tokens");
  for (const char* seed : {"-1", "18446744073709551616", "1.5"})
    expect_usage_error(start + "--prompt-ids 1 --max-tokens 3 --seed " + seed,
                       "a whole number from 0 to 2^64 - 1");
  const std::string bad = folder.write("bad.jsonl", "{\"prompt\": 3}\n").string();
  expect_failure(start + "--batch " + bad + " --max-tokens 3", 1, "line 1");
}

TEST_F(CliGenerate, AsManyTokensAsTheContextHolds) {
  const auto done =
      report(model() + "--prompt-ids 1,2,3 --max-tokens 9223372036854775807 --ignore-end");
  EXPECT_EQ(done["ids"][0].size(), 21u);
  const std::string use = "generate " + model() + "--prompt-ids 1,2,3 --ignore-end --max-tokens ",
                    limit = "context of 24 has room for 21";
  EXPECT_NE(run(use + "22").output.find(limit), std::string::npos);
  EXPECT_EQ(run(use + "21").output.find(limit), std::string::npos);
}

TEST_F(CliGenerate, SettingsOfTheFolderThatDoNotApplyAreTold) {
  const std::string use = "generate " + model() + "--prompt-ids 1 --max-tokens 2 ";
  EXPECT_EQ(run(use).output.find("warning"), std::string::npos);
  folder.write("model/generation_config.json",
               R"({"repetition_penalty": 1.3, "do_sample": true, "num_beams": 1, "top_k": 50})");
  const std::string greedy = run(use).output, drawn = run(use + "--top-k 3").output;
  EXPECT_NE(greedy.find("do_sample, repetition_penalty, which"), std::string::npos) << greedy;
  EXPECT_NE(drawn.find("sets repetition_penalty, which"), std::string::npos) << drawn;
}

// Token 3 is NaN: sequences that contain it end, and all others are complete.
TEST_F(CliGenerate, LogitsThatAreNotFiniteEndTheirOwnSequence) {
  const std::filesystem::path weights = folder / "model/model.safetensors";
  std::vector<io::NamedTensor> tensors;
  {
    const io::SafetensorsFile file(weights);
    for (const auto& [name, entry] : file.entries()) {
      Variable value(zeros(entry.type.shape, entry.type.dtype));
      file.load(name, value);
      if (name == "transformer.wte.weight") {
        auto rows = value.to_vector<float>();
        for (std::size_t i = 0; i < 12; ++i) rows[3 * 12 + i] = std::nanf("");
        tensors.push_back({name, Tensor::from(rows, entry.type.shape)});
        continue;
      }
      tensors.push_back({name, value});
    }
  }
  io::write_safetensors(weights, tensors);
  const std::string file =
      folder.write("p.jsonl", "{\"ids\": [1]}\n{\"ids\": [3, 1]}\n{\"ids\": [2]}\n").string();
  const Outcome told = run("generate " + model() + "--batch " + file +
                           " --max-tokens 1 --ignore-end --sequences 2 --json");
  EXPECT_EQ(told.code, 1);
  ASSERT_EQ(lines(told.output).size(), 2u) << told.output;
  EXPECT_NE(told.output.find("prompt 2 after 0 generated tokens"), std::string::npos);
  const auto done = nlohmann::json::parse(lines(told.output).front());
  EXPECT_EQ(done.at("ended"), nlohmann::json({"length", "not finite", "length"}));
  EXPECT_EQ(done["ids"][0].size(), 1u);
  EXPECT_EQ(done["ids"][1].size(), 0u);
  EXPECT_EQ(done["ids"][2].size(), 1u);
}

// A request to stop prints the text generated so far.
TEST_F(CliGenerate, ASignalPrintsWhatWasGenerated) {
  models::Gpt2Config config{
      .vocabulary = 600, .context = 4096, .layers = 4, .heads = 2, .width = 128};
  const nn::MakeScope scope(device::cpu, f32);
  io::save(models::Gpt2(config), folder / "long");
  std::string prompts;
  for (int i = 0; i < 400; ++i) prompts += "{\"ids\": [" + std::to_string(i) + "]}\n";
  const std::string file = folder.write("p.jsonl", prompts).string(),
                    out = (folder / "out").string();
  const Outcome done =
      run("generate --model " + (folder / "long").string() + " --batch " + file +
          " --max-tokens 4000 --ignore-end --sequences 4 --json 2>&1 >" + out +
          // until the program catches the signal, number 15
          " & p=$!; while [ $((0x$(awk '/SigCgt/{print $2}' /proc/$p/status) & 16384)) = 0 ]; do "
          "sleep 0.05; done; kill -TERM $p; wait $p; c=$?; cat " +
          out + "; exit $c");
  EXPECT_EQ(done.code, 143) << done.output.substr(0, 500);
  EXPECT_NE(done.output.find("interrupted: 0 of 400"), std::string::npos);
  const auto report = nlohmann::json::parse(lines(done.output).back());
  EXPECT_GT(report.at("ids")[0].size(), 0u);
  EXPECT_EQ(report.at("ended")[399], "interrupted");
}

TEST_F(CliGenerate, FitTellsHowManySequences) {
  const Outcome done =
      run("fit --generate " + model() + "--budget 2MiB --max-tokens 24 --most 50 --json");
  ASSERT_EQ(done.code, 0) << done.output;
  const auto fit = nlohmann::json::parse(lines(done.output).back());
  EXPECT_GE(fit.at("sequences"), 1);
  EXPECT_LE(fit.at("planned_peak_bytes"), 2 << 20);
  EXPECT_EQ(fit.at("tokens"), 24);
  expect_usage_error("fit --generate --budget 1MiB", "--model");
  expect_usage_error("fit --generate " + model() + "--budget 1MiB --layers 2", "--layers");
  expect_failure("fit --generate " + model() + "--budget 8KiB", 1, "not even one");
}

}  // namespace
}  // namespace ebb::test
