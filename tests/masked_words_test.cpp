// Masked words: which tokens are hidden, and training on text from the command line.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ebb/data/masked_tokens.h"
#include "ebb/error.h"
#include "support/command_line.h"
#include "support/model_folders.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t begin_token = 1, mask_token = 2, words_from = 3;

data::MaskingOptions options(std::int64_t sequence) {
  return {.sequence = sequence,
          .padding = 0,
          .mask = mask_token,
          .vocabulary = 1000,
          .special = {begin_token, mask_token},
          .fixed_seed = {}};
}

data::MaskedTokenDataset texts(int count, int length, const data::MaskingOptions& how) {
  std::vector<Ids> all;
  for (int t = 0; t < count; ++t) {
    Ids text{begin_token};
    for (int i = 1; i < length; ++i) text.push_back(words_from + (t * length + i) % 900);
    all.push_back(text);
  }
  return {all, how};
}

// Of 200 × 99 words, the counts are within five standard deviations of what BERT's rule gives.
TEST(MaskedWords, FifteenPercentAreChosenAndMostOfThemHidden) {
  const data::MaskedTokenDataset all = texts(200, 100, options(128));
  std::vector<std::int64_t> items(200);
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = static_cast<std::int64_t>(i);
  const Batch batch = all.batch(items, {7, 0});
  const Ids ids = batch.x().to_vector<std::int32_t>(), y = batch.y().to_vector<std::int32_t>();
  int chosen = 0, masked = 0, same = 0, other = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t at = i % 128, text = i / 128;
    if (at == 0 || at >= 100) {
      EXPECT_EQ(y[i], -100);  // special tokens and padding
      EXPECT_EQ(ids[i], at == 0 ? begin_token : 0);
      continue;
    }
    const auto original = static_cast<std::int32_t>(words_from + (text * 100 + at) % 900);
    if (y[i] == -100) {
      EXPECT_EQ(ids[i], original);
      continue;
    }
    EXPECT_EQ(y[i], original);
    ++chosen, ++(ids[i] == mask_token ? masked : ids[i] == original ? same : other);
  }
  const auto near = [](int count, double n, double p) {
    EXPECT_NEAR(count, n * p, 5.0 * std::sqrt(n * p * (1.0 - p)));
  };
  near(chosen, 200 * 99, 0.15);
  near(masked, chosen, 0.8);
  near(same, chosen, 0.1);
  near(other, chosen, 0.1);
}

TEST(MaskedWords, MasksDependOnSeedEpochAndItemAlone) {
  const data::MaskedTokenDataset all = texts(8, 20, options(20));
  const auto row = [&](std::vector<std::int64_t> items, std::size_t at, RandomState state) {
    const Ids ids = all.batch(items, state).x().to_vector<std::int32_t>();
    return Ids(ids.begin() + static_cast<std::ptrdiff_t>(20 * at),
               ids.begin() + static_cast<std::ptrdiff_t>(20 * at + 20));
  };
  EXPECT_EQ(row({5}, 0, {3, 1}), row({2, 7, 5}, 2, {3, 1}));  // whatever else is in the batch
  EXPECT_NE(row({5}, 0, {3, 1}), row({5}, 0, {3, 2}));
  EXPECT_NE(row({5}, 0, {3, 1}), row({5}, 0, {4, 1}));
  data::MaskingOptions fixed = options(20);
  fixed.fixed_seed = 9;
  const data::MaskedTokenDataset tests = texts(8, 20, fixed);
  const std::int64_t item = 3;
  const Ids y = tests.batch({&item, 1}, {1, 1}).y().to_vector<std::int32_t>();
  EXPECT_EQ(y, tests.batch({&item, 1}, {2, 2}).y().to_vector<std::int32_t>());
  EXPECT_EQ(tests.targets(item), 20 - std::count(y.begin(), y.end(), -100));
  EXPECT_THROW(all.targets(item), ValueError);
}

TEST(MaskedWords, EveryTextHasATarget) {
  data::MaskingOptions rare = options(4);
  rare.share = 1e-9;
  const data::MaskedTokenDataset all = texts(50, 4, rare);
  for (std::int64_t item = 0; item < 50; ++item) {
    const Ids y = all.batch({&item, 1}, {}).y().to_vector<std::int32_t>();
    EXPECT_EQ(std::count(y.begin(), y.end(), -100), 3);
  }
  EXPECT_THROW(data::MaskedTokenDataset({{begin_token}}, options(4)), ValueError);
  EXPECT_THROW(data::MaskedTokenDataset({{}}, options(4)), ValueError);
  EXPECT_THROW(data::MaskedTokenDataset({{3, 3, 3, 3, 3}}, options(4)), ValueError);
  EXPECT_THROW(data::MaskedTokenDataset({{1000}}, options(4)), ValueError);
}

// --- The command line

class MaskedWordsFolder : public testing::Test {
 protected:
  // A golden folder with a tokenizer that has a token for each small letter.
  fs::path folder(const std::string& name) {
    const fs::path path = place_ / name;
    fs::copy(fs::path(EBB_GOLDEN_FOLDER) / "families" / name, path);
    Json vocabulary{{"?", 0}, {"[", 1}, {"]", 2}, {"[MASK]", 3}};
    for (const char c : std::string("abcdefghijklmnopqrstuvwxyz .\n"))
      vocabulary[std::string(1, c)] = static_cast<int>(vocabulary.size());
    const auto added = [](int id, const char* text) {
      return Json{{"id", id},        {"content", text}, {"single_word", false},
                  {"lstrip", false}, {"rstrip", false}, {"normalized", false},
                  {"special", true}};
    };
    std::ofstream(path / "tokenizer.json") << Json{
        {"version", "1.0"},
        {"added_tokens", {added(1, "["), added(2, "]"), added(3, "[MASK]")}},
        {"normalizer", nullptr},
        {"pre_tokenizer", nullptr},
        {"post_processor", {{"type", "BertProcessing"}, {"sep", {"]", 2}}, {"cls", {"[", 1}}}},
        {"decoder", nullptr},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", "?"},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"vocab", vocabulary},
          {"merges", Json::array()}}}};
    return path;
  }
  fs::path file(const char* name, const std::string& text) {
    std::ofstream(place_ / name) << text;
    return place_ / name;
  }
  static Json json_of(const std::string& arguments) {
    const Outcome outcome = run(arguments + " --json 2>/dev/null | tail -n 1");
    EXPECT_EQ(outcome.code, 0) << arguments << outcome.output;
    return Json::parse(outcome.output, nullptr, false);
  }

  TemporaryFolder place_;
};

TEST_F(MaskedWordsFolder, LearnATextAndComeBack) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "abcdefghijklm nopqrstuvwxyz.\n";
  const fs::path data = file("text.txt", text);
  for (const char* name : {"bert_masked", "roberta_masked", "distilbert_masked"}) {
    const fs::path model = folder(name), out = place_ / (std::string(name) + "-tuned");
    const std::string train = "train --model " + model.string() + " --data " + data.string() +
                              " --sequence 16 --batch 16 --lr 0.02 --eval-batches 2"
                              " --threads 1";
    const std::string judge = "eval --text " + data.string() + " --sequence 16 --batch 8 --model ";
    const Json before = json_of(judge + model.string());
    const Json run_ = json_of(train + " --steps 40 --save " + out.string());
    const Json after = json_of(judge + out.string());
    EXPECT_LT(after["loss"].get<double>(), 0.9 * before["loss"].get<double>()) << name;
    EXPECT_EQ(before["tokens"], after["tokens"]);
    // The same bits within less memory: masks are drawn again from the seed.
    const Json again = json_of(train + " --steps 4 --budget least")["losses"];
    ASSERT_EQ(again.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(again[i], run_["losses"][i]) << name;
    const Json saved = read_json(out / "config.json");
    EXPECT_EQ(saved["architectures"], read_json(model / "config.json")["architectures"]);
  }
}

TEST_F(MaskedWordsFolder, ResumeToTheSameBits) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines +=
        "{\"text\": \"some words and " + std::string(1, static_cast<char>('a' + i % 26)) + "\"}\n";
  const std::string train = "train --model " + folder("bert_masked").string() + " --data " +
                            file("texts.jsonl", lines).string() +
                            " --sequence 16 --batch 8 --threads 1 ";
  const std::string at = (place_ / "run").string();
  const Json whole = json_of(train + "--steps 8");
  json_of(train + "--steps 5 --checkpoint " + at);
  const Json rest = json_of("train --resume " + at + " --steps 8");
  EXPECT_EQ(rest["losses"].back(), whole["losses"].back());
}

TEST_F(MaskedWordsFolder, WrongUseIsToldPlainly) {
  const fs::path model = folder("bert_masked");
  const auto fails = [&](const std::string& arguments, const std::string& text) {
    const Outcome outcome = run("plan --model " + model.string() + " " + arguments + " 2>&1");
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  };
  const std::string data = "--data " + file("a.txt", "some words here and there").string();
  fails(data + " --sequence 2", "no room for text beside the 2 special tokens");
  fails(data + " --labels-from 1", "labels_from is for labelled texts");
  fails("--data " + file("p.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n").string(),
        "masked words are of a \"text\"");
  fails("--data " + file("e.txt", "").string(), "it has no token");
  // Labels make the same folder a classifier.
  std::string labelled;
  for (int i = 0; i < 20; ++i) labelled += "{\"text\": \"abc\", \"label\": 1}\n";
  EXPECT_EQ(run("plan --model " + model.string() + " --data " + file("l.jsonl", labelled).string() +
                " --batch 4 2>&1")
                .code,
            0);
  // Evaluated as a classifier, its head would be random numbers.
  const Outcome random =
      run("eval --model " + model.string() + " --text " + (place_ / "l.jsonl").string() + " 2>&1");
  EXPECT_NE(random.code, 0);
  EXPECT_NE(random.output.find("the folder has no bert.pooler.dense.weight"), std::string::npos)
      << random.output;
  Json tokenizer = read_json(model / "tokenizer.json");
  tokenizer["added_tokens"].erase(2), tokenizer["model"]["vocab"].erase("[MASK]");
  std::ofstream(model / "tokenizer.json") << tokenizer;
  fails(data + " --sequence 8", "no token that hides another");
}

}  // namespace
}  // namespace ebb::test
