// `ebb tokenize` as a user starts it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ebb/data/text.h"
#include "support/command_line.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

constexpr const char* tokenizer = R"({
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "post_processor": {"type": "BertProcessing", "cls": ["<s>", 300], "sep": ["</s>", 301]},
  "added_tokens": [{"id": 300, "content": "<s>", "special": true}, {"id": 301, "content": "</s>", "special": true}],
  "model": {"type": "WordPiece", "unk_token": "?", "vocab": {"?": 0, "to": 1, "be": 258}}})";

class CliTokenize : public ::testing::Test {
 protected:
  std::string options(const std::string& out) const {
    return "--tokenizer " + folder.path().string() + " --out " + (folder / out).string() +
           " --data ";
  }
  TemporaryFolder folder;
  std::string file = folder.write("tokenizer.json", tokenizer).string();
  std::string text = folder.write("text.txt", "to be or\n").string();
};

TEST_F(CliTokenize, WritesTokensThatLanguageWorkloadsRead) {
  const Outcome done = run("tokenize " + options("t.bin") + text + " " + text + " --json");
  ASSERT_EQ(done.code, 0) << done.output;
  const auto report = nlohmann::json::parse(lines(done.output).back());
  EXPECT_EQ(report.at("tokens"), 6);
  EXPECT_EQ(report.at("bytes"), 18);
  EXPECT_EQ(report.at("vocabulary"), 302);
  EXPECT_GT(report.at("tokens_per_s").get<double>(), 0.0);
  const auto stream = data::TokenStream::file(folder / "t.bin", data::TokenWidth::int32, 302);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(stream.size()));
  stream.read(0, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 258, 0, 1, 258, 0}));
}

TEST_F(CliTokenize, TokensMayHaveTwoBytesAndSpecialTokens) {
  const Outcome done = run("tokenize " + options("t.bin") + text + " --dtype uint16 --add-special");
  ASSERT_EQ(done.code, 0) << done.output;
  using namespace std::string_literals;
  EXPECT_EQ(contents(folder / "t.bin"), "\x2c\x01\x01\0\x02\x01\0\0\x2d\x01"s);
}

TEST_F(CliTokenize, CompressedTextIsUnpackedAndJsonRefused) {
  const Outcome packed = run("info >/dev/null; gzip -k " + text);
  ASSERT_EQ(packed.code, 0) << packed.output;
  const Outcome done = run("tokenize " + options("t.bin") + text + ".gz --json");
  ASSERT_EQ(done.code, 0) << done.output;
  EXPECT_EQ(nlohmann::json::parse(lines(done.output).back()).at("tokens"), 3);
  const std::string json = folder.write("a.jsonl", "{\"text\": \"to be\"}\n").string();
  expect_usage_error("tokenize " + options("u.bin") + json, "its lines are JSON");
}

TEST_F(CliTokenize, ErrorsLeaveNoFile) {
  const std::string bad = folder.write("bad.txt", "to \xff").string();
  expect_failure("tokenize " + options("t.bin") + text + " " + bad, 1,
                 "bad.txt: text must be UTF-8");
  expect_failure("tokenize " + options("t.bin") + (folder / "none.txt").string(), 1, "none.txt");
  expect_usage_error("tokenize " + options("t.bin") + text + " --dtype int8", "--dtype");
  folder.write("tokenizer.json",
               R"({"model": {"type": "BPE", "merges": [], "vocab": {"a": 65536}}})");
  expect_usage_error("tokenize " + options("t.bin") + text + " --dtype uint16", "65536");
  EXPECT_FALSE(std::filesystem::exists(folder / "t.bin"));
}

}  // namespace
}  // namespace ebb::test
