// `ebb train --model` and `ebb eval --text`: from a folder and a text to a folder.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/command_line.h"
#include "support/model_folders.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A token for each small letter and some signs; the golden models have 61.
void write_tokenizer(const fs::path& folder, const Json& post_processor = nullptr) {
  Json vocabulary{{"?", 0}, {"[", 1}, {"]", 2}};
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz .,:;!-'\n"))
    vocabulary[std::string(1, c)] = static_cast<int>(vocabulary.size());
  std::ofstream(folder / "tokenizer.json") << Json{{"version", "1.0"},
                                                   {"added_tokens", Json::array()},
                                                   {"normalizer", nullptr},
                                                   {"pre_tokenizer", nullptr},
                                                   {"post_processor", post_processor},
                                                   {"decoder", nullptr},
                                                   {"model",
                                                    {{"type", "BPE"},
                                                     {"dropout", nullptr},
                                                     {"unk_token", "?"},
                                                     {"fuse_unk", false},
                                                     {"byte_fallback", false},
                                                     {"vocab", vocabulary},
                                                     {"merges", Json::array()}}}};
  std::ofstream(folder / "tokenizer_config.json") << R"({"model_max_length": 16})";
}

std::string verse(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += "shall i compare thee to a summer's day;\nthou art more lovely, and more temperate:\n";
  return text;
}

class FineTuning : public testing::Test {
 protected:
  fs::path folder(const char* family) {
    const fs::path path = place_ / family;
    fs::copy(golden_models / family, path);
    write_tokenizer(path);
    return path;
  }
  fs::path file(const char* name, const std::string& text) {
    std::ofstream(place_ / name) << text;
    return place_ / name;
  }
  static Json json_of(const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json 2>/dev/null");
    EXPECT_EQ(outcome.code, 0) << arguments << outcome.output;
    const std::size_t end = outcome.output.find_last_not_of('\n'),
                      begin = outcome.output.rfind('\n', end);
    return Json::parse(
        outcome.output.substr(begin == std::string::npos ? 0 : begin + 1, end - begin));
  }
  static std::string in(const fs::path& model, const fs::path& data) {
    return " --model " + model.string() + " --data " + data.string() + " ";
  }

  TemporaryFolder place_;
};

TEST_F(FineTuning, LearnsATextAndSavesAFolder) {
  const fs::path text = file("verse.txt", verse(20));
  for (const char* family : {"gpt2", "llama"}) {
    const fs::path model = folder(family), out = place_ / (std::string(family) + "-tuned");
    const std::string evaluate = "eval --text " + text.string() + " --batch 8 --model ";
    const Json before = json_of(evaluate + model.string());
    const Json run = json_of("train --steps 60 --lr 0.01 --batch 8 --eval-batches 2" +
                             in(model, text) + "--save " + out.string());
    EXPECT_EQ(run["workload"], "model");
    EXPECT_EQ(run["measured_peak_bytes"], run["planned_peak_bytes"]) << family;
    EXPECT_NEAR(run["losses"][0].get<double>(), before["loss"].get<double>(), 0.5) << family;
    const Json after = json_of(evaluate + out.string());
    EXPECT_LT(after["loss"].get<double>(), 0.8 * before["loss"].get<double>()) << family;
    EXPECT_NEAR(after["perplexity"].get<double>(), std::exp(after["loss"].get<double>()), 1e-6);
    EXPECT_TRUE(fs::exists(out / "tokenizer.json") && fs::exists(out / "tokenizer_config.json"));
    EXPECT_EQ(read_json(out / "config.json"), read_json(model / "config.json"));
  }
}

TEST_F(FineTuning, StartsFromTheFoldersWeightsWithinABudgetAndGoesOn) {
  const fs::path text = file("verse.txt", verse(20)), model = folder("llama"),
                 kept = place_ / "run";
  const std::string step = "--batch 4 --seed 3" + in(model, text),
                    common = "--eval-batches 0 " + step;
  const Json free = json_of("train --steps 4 " + common), planned = json_of("plan " + step);
  EXPECT_EQ(planned["params"], free["params"]);
  const std::string budget =
      " --budget " + std::to_string(planned["min_fast_bytes"].get<std::int64_t>());
  EXPECT_EQ(json_of("train --steps 4 " + common + budget)["losses"], free["losses"]);
  json_of("train --steps 2 " + common + " --checkpoint " + kept.string());
  const Json rest = json_of("train --steps 4 --resume " + kept.string());
  EXPECT_EQ(rest["losses"][0], free["losses"][2]);
  EXPECT_EQ(rest["losses"][1], free["losses"][3]);
  // Another folder is a different run, unless the user asks for the change.
  std::ofstream(model / "config.json", std::ios::app) << "\n";
  expect_usage_error("train --steps 6 --resume " + kept.string(), "--change model");
  json_of("train --steps 6 --change model --resume " + kept.string());
}

TEST_F(FineTuning, TokenFilesAndTextsGiveTheSame) {
  const fs::path text = file("verse.txt", verse(12)), model = folder("gpt2"),
                 tokens = place_ / "tokens.bin";
  ASSERT_EQ(run("tokenize --tokenizer " + model.string() + " --data " + text.string() + " --out " +
                tokens.string())
                .code,
            0);
  const std::string steps = "train --steps 2 --batch 2 --eval-batches 0";
  EXPECT_EQ(json_of(steps + in(model, text))["losses"],
            json_of(steps + in(model, tokens))["losses"]);
  const std::string evaluate = "eval --model " + model.string();
  EXPECT_EQ(json_of(evaluate + " --text " + text.string())["loss"],
            json_of(evaluate + " --tokens " + tokens.string())["loss"]);
}

// The loss of an answer depends only on its own tokens, not on the rest of the batch.
TEST_F(FineTuning, OnlyAnswersArePredicted) {
  const fs::path model = folder("gpt2");
  const auto loss = [&](const std::string& lines) {
    return json_of("eval --batch 8 --model " + model.string() + " --text " +
                   file("texts.jsonl", lines).string());
  };
  const std::string first = R"({"prompt": "who are", "answer": " you"})"
                            "\n",
                    second = R"({"prompt": "me", "answer": ", yes", "from": "elsewhere"})"
                             "\n\n";
  const Json a = loss(first), b = loss(second), both = loss(first + second),
             whole = loss(R"({"text": "who are you"})");
  EXPECT_EQ(a["tokens"], 4);  // the folder names no token that ends a text below its vocabulary
  EXPECT_EQ(b["tokens"], 5);
  EXPECT_EQ(whole["tokens"], 10);
  EXPECT_NEAR(both["loss"].get<double>(),
              (4 * a["loss"].get<double>() + 5 * b["loss"].get<double>()) / 9, 1e-5);
}

// A packed step has the loss and gradients of the texts by themselves.
TEST_F(FineTuning, PackedTextsDoNotSeeEachOther) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += Json{{"text", verse(1).substr(static_cast<std::size_t>(i), 5)}}.dump() + "\n";
  const fs::path texts = file("texts.jsonl", lines);
  for (const char* family : {"gpt2", "llama"}) {
    const fs::path model = folder(family);
    // No dropout: rows, and so random numbers, differ. 36 texts of 5 tokens, 4 of them predicted,
    // are trained on: four fit into 16 places.
    Json config = read_json(model / "config.json");
    config["eos_token_id"] = nullptr;
    for (const char* field : {"attn_pdrop", "embd_pdrop", "resid_pdrop"})
      if (config.contains(field)) config[field] = 0.0;
    std::ofstream(model / "config.json") << config;
    const std::string steps =
        "train --steps 3 --lr 0.01 --sequence 16 --eval-batches 1" + in(model, texts);
    const Json single = json_of(steps + "--batch 36"), packed = json_of(steps + "--batch 9 --pack");
    EXPECT_EQ(packed["data"]["train"]["items"], 9) << family;
    // float32; rounding grows a little from step to step.
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(packed["losses"][i].get<double>(), single["losses"][i].get<double>(),
                  i == 0 ? 1e-5 : 1e-4)
          << family << i;
    EXPECT_EQ(packed["measured_peak_bytes"], packed["planned_peak_bytes"]) << family;
    EXPECT_LT(packed["planned_peak_bytes"], single["planned_peak_bytes"]) << family;
  }
}

TEST_F(FineTuning, ClassifiersTakeLabelledTexts) {
  const fs::path model = place_ / "bert";
  fs::copy(golden_models / "bert", model);
  write_tokenizer(model, Json{{"type", "BertProcessing"}, {"sep", {"]", 2}}, {"cls", {"[", 1}}});
  std::string csv = "label,text\n", lines;
  for (int i = 0; i < 30; ++i) {
    const std::string text(static_cast<std::size_t>(3 + i % 20), static_cast<char>('a' + i % 3));
    csv += std::to_string(1 + i % 3) + "," + text + "\n";
    lines += Json{{"text", text}, {"label", i % 3}}.dump() + "\n";
  }
  const fs::path table = file("texts.csv", csv), json = file("texts.jsonl", lines),
                 out = place_ / "tuned";
  const std::string evaluate = "eval --batch 10 --model ";
  const Json before = json_of(evaluate + model.string() + " --text " + table.string());
  EXPECT_EQ(before, json_of(evaluate + model.string() + " --text " + json.string()));
  EXPECT_EQ(before["texts"], 30);
  json_of("train --steps 60 --lr 0.01 --batch 9 --eval-batches 0" + in(model, table) + "--save " +
          out.string());
  const Json after = json_of(evaluate + out.string() + " --text " + table.string());
  EXPECT_LT(after["loss"].get<double>(), before["loss"].get<double>());
  EXPECT_GT(after["accuracy"].get<double>(), 0.9);
}

// An encoder with another head, or none, trains like one with the right head.
TEST_F(FineTuning, ParametersThatAFolderLacksAreNamed) {
  FolderCopy encoder("bert");
  write_tokenizer(encoder.path());
  encoder.change_tensors([](FolderCopy::Tensors& t) {
    t.erase("classifier.weight"), t.erase("classifier.bias");
    t.erase("bert.pooler.dense.weight"), t.erase("bert.pooler.dense.bias");
  });
  std::string texts;
  for (int i = 0; i < 30; ++i)
    texts += Json{{"text", std::string(5, 'a')}, {"label", i % 3}}.dump() + "\n";
  const std::string data = in(encoder.path(), file("texts.jsonl", texts)),
                    kept = "--checkpoint " + (place_ / "run").string(),
                    options = "train --batch 4 --eval-batches 0 --steps ";
  const Json told = json_of(options + "1" + data + kept);
  EXPECT_EQ(told["initialised"].size(), 4u);
  const Outcome in_words = run(options + "1" + data);
  for (const char* part : {" has no ", "pooler.dense.weight", "classifier.bias", "random numbers"})
    EXPECT_NE(in_words.output.find(part), std::string::npos) << in_words.output;
  // The checkpoint has all of them.
  const Outcome resumed = run(options + "2" + data + "--resume " + (place_ / "run").string());
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_EQ(resumed.output.find(" has no "), std::string::npos) << resumed.output;
}

// In a file sorted by class or source, the held-out texts are drawn from all of it.
TEST_F(FineTuning, FilesInOrderAreHeldOutAtRandom) {
  const fs::path classifier = place_ / "bert", lm = folder("gpt2");
  fs::copy(golden_models / "bert", classifier);
  write_tokenizer(classifier,
                  Json{{"type", "BertProcessing"}, {"sep", {"]", 2}}, {"cls", {"[", 1}}});
  std::string csv, lines;
  for (int i = 0; i < 60; ++i) {
    const std::string text(5, static_cast<char>('a' + i / 20));
    csv += std::to_string(1 + i / 20) + "," + text + "\n";
    lines += Json{{"text", text}}.dump() + "\n";
  }
  // A model that learns "c" alone is right for a third of the test if that has all classes.
  const std::string train = "train --steps 30 --lr 0.01 --batch 9 --eval-batches 100" +
                            in(classifier, file("a.csv", csv));
  const Json labelled = json_of(train), again = json_of(train + "--seed 5");
  EXPECT_EQ(labelled["data"]["test"]["items"], 6);
  EXPECT_EQ(labelled["data"]["test"]["source"].get<std::string>(),
            (place_ / "a.csv").string() + ", 6 of its 60 texts, drawn at random");
  EXPECT_EQ(labelled["data"], again["data"]);
  const Json texts =
      json_of("train --steps 1 --batch 2 --eval-batches 1" + in(lm, file("a.jsonl", lines)));
  EXPECT_EQ(texts["data"]["train"]["source"].get<std::string>(),
            (place_ / "a.jsonl").string() + ", all but 6 of its 60 texts, drawn at random");
  EXPECT_EQ(texts["data"]["train"]["items"], 54);
}

// A resumed run holds out the same texts.
TEST_F(FineTuning, LabelledTextsResumeToTheSameBits) {
  std::string csv;
  for (int i = 0; i < 40; ++i)
    csv += std::to_string(1 + i / 20) + "," +
           std::string(3 + i % 7, static_cast<char>('a' + i % 5)) + "\n";
  const fs::path table = file("a.csv", csv);
  const std::string train =
      "train --workload bert --layers 1 --width 8 --heads 1 --sequence 8 --vocabulary 64 --classes "
      "2 --batch 4 --threads 1 --eval-batches 1 --data " +
      table.string() + " ";
  const std::string at = (place_ / "run").string();
  const Json whole = json_of(train + "--steps 8");
  json_of(train + "--steps 5 --checkpoint " + at);
  const Json rest = json_of("train --resume " + at + " --steps 8");
  EXPECT_EQ(rest["losses"].back(), whole["losses"].back());
  EXPECT_EQ(rest["eval_loss"], whole["eval_loss"]);
}

TEST_F(FineTuning, EvaluationKeepsABudget) {
  const fs::path text = file("verse.txt", verse(12)), model = folder("gpt2");
  const std::string evaluate =
      "eval --batch 64 --model " + model.string() + " --text " + text.string();
  const Json free = json_of(evaluate), less = json_of(evaluate + " --budget 200KiB");
  EXPECT_GT(free["planned_peak_bytes"], 200 << 10);
  EXPECT_LE(less["planned_peak_bytes"], 200 << 10);
  EXPECT_NEAR(free["loss"].get<double>(), less["loss"].get<double>(), 1e-5);
  expect_failure(evaluate + " --budget 2KiB", 1, "one row at a time");
  expect_usage_error(evaluate + " --budget least", "a number of bytes");
  expect_usage_error(evaluate + " --budget 1MiB --base int8 --calibrate " + text.string(),
                     "--calibrate");
}

// Texts of unequal length: the test loss is the mean over all their tokens, however they are
// divided into batches, as in ebb eval.
TEST_F(FineTuning, TestLossesAreMeansOverTargets) {
  std::string train, test;
  for (int i = 0; i < 8; ++i) train += "{\"text\": \"some text to train on\"}\n";
  for (const char* text : {"an", "thou art lovely", "of", "the darling bu", "so long", "it"})
    test += Json{{"text", text}}.dump() + "\n";
  fs::create_directory(place_ / "data");
  file("data/train.jsonl", train);
  const fs::path texts = file("data/test.jsonl", test), model = folder("gpt2");
  const double whole =
      json_of("eval --batch 4 --model " + model.string() + " --text " + texts.string())["loss"];
  for (const char* batch : {"1", "2", "3", "6"}) {
    const Json trained = json_of("train --lr 0 --steps 1 --eval-batches 100 --batch " +
                                 std::string(batch) + in(model, place_ / "data"));
    EXPECT_NEAR(trained["eval_loss"].get<double>(), whole, 1e-6) << batch;
  }
}

TEST_F(FineTuning, WrongUseIsToldPlainly) {
  const fs::path text = file("verse.txt", verse(12)), model = folder("gpt2");
  const std::string use = in(model, text);
  expect_usage_error("train --model " + model.string(), "--model needs --data");
  expect_usage_error("train --workload gpt2" + use, "--model");
  expect_usage_error("plan --layers 3" + use, "config.json");
  expect_usage_error("plan --workload mlp --pack", "--pack does not apply");
  expect_usage_error("fit --vary layers --budget 1MiB" + use, "config.json");
  expect_failure("plan --sequence 17" + use, 1, "between 1 and 16");
  expect_failure("plan --pack" + use, 1, ".jsonl");
  expect_failure("plan" + in(model, place_.path()), 1, "expected train.txt");
  expect_failure("plan" + in(model, file("short.txt", "a")), 1, "a shorter sequence would do");
  expect_failure("plan" + in(model, file("bytes.txt", std::string(400, '\xff'))), 1, "UTF-8");
  expect_failure("plan" + in(model, file("a.jsonl", "{\"text\": 3}\n")), 1, "line 1");
  expect_failure("plan" + in(model, file("b.jsonl", "{\"prompt\": \"a\"}\n")), 1, "\"answer\"");
  expect_failure("plan" + in(model, file("c.jsonl", "{\"text\": \"a\"}\n")), 1, "text 1");
  expect_usage_error("eval --model " + model.string(), "--text FILE or --tokens FILE");
  fs::remove(model / "tokenizer.json");
  expect_failure("plan" + use, 1, "tokenizer.json");
}

}  // namespace
}  // namespace ebb::test
