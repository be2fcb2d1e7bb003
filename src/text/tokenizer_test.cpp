#include "ebb/text/tokenizer.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "ebb/error.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using nlohmann::json;
using text::Specials;
using text::TokenId;
using text::Tokenizer;
using Ids = std::vector<TokenId>;

// WordPiece with the given words, "[UNK]" first.
json word_piece(const std::vector<std::string>& words) {
  json vocabulary = {{"[UNK]", 0}};
  for (const std::string& word : words) vocabulary[word] = vocabulary.size();
  return {{"version", "1.0"},
          {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
          {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", vocabulary}}}};
}

// BPE of the letters a to d, with merges that make longer and longer words.
json letters(const std::vector<std::pair<std::string, std::string>>& merges) {
  json vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}}, list = json::array();
  for (const auto& [left, right] : merges) {
    if (!vocabulary.contains(left + right)) vocabulary[left + right] = vocabulary.size();
    list.push_back({left, right});
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", list}}}};
}

Tokenizer make(const json& file) { return Tokenizer::parse(file.dump()); }

void expect_refused(const json& file, std::vector<std::string> parts) {
  parts.insert(parts.begin(), "tokenizer.json");
  expect_error([&] { (void)make(file); }, parts);
}

TEST(Tokenizer, LooksUpTokensAndIds) {
  json file = word_piece({"run", "##ning"});
  file["added_tokens"] = {{{"id", 9}, {"content", "<s>"}, {"special", true}}};
  const Tokenizer tokenizer = make(file);
  EXPECT_EQ(tokenizer.encode("running ran<s>run"), (Ids{1, 2, 0, 9, 1}));
  EXPECT_EQ(tokenizer.id("##ning"), 2);
  EXPECT_EQ(tokenizer.id("<s>"), 9);
  EXPECT_EQ(tokenizer.id("ning"), std::nullopt);
  EXPECT_EQ(tokenizer.token(9), "<s>");
  EXPECT_EQ(tokenizer.token(5), std::nullopt);
  EXPECT_EQ(tokenizer.size(), 4);
  EXPECT_EQ(tokenizer.vocabulary(), 10);
  EXPECT_EQ(tokenizer.special_ids(), Ids{9});
  EXPECT_EQ(tokenizer.decode(Ids{9, 1}), "run");
  EXPECT_EQ(tokenizer.decode(Ids{9, 1}, Specials::with), "<s> run");
  expect_error([&] { (void)tokenizer.decode(Ids{1, 5}); }, {"ids[1]", "5"});
}

TEST(Tokenizer, TextMustBeUtf8) {
  const Tokenizer tokenizer = make(word_piece({"a"}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  for (const char* bad :
       {"aa\xff", "aa\xc0\xaf", "aa\xed\xa0\x80", "aa\xf4\x90\x80\x80", "aa\xe2\x82"})
    expect_error([&] { (void)tokenizer.encode(bad); }, {"UTF-8", "byte 2"});
}

TEST(Tokenizer, IsLoadedFromAFolderOrAFile) {
  const TemporaryFolder folder;
  const auto file = folder.write("tokenizer.json", word_piece({"a"}).dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("a"), Ids{1});
  EXPECT_EQ(Tokenizer::load(file).encode("a"), Ids{1});
  expect_error([&] { (void)Tokenizer::load(folder / "none"); }, {"none"});
  folder.write("tokenizer.json", "{");
  expect_error([&] { (void)Tokenizer::load(folder.path()); }, {"tokenizer.json", "not JSON"});
}

TEST(Tokenizer, RefusesWhatItDoesNotSupportByItsPlace) {
  const auto with = [](const char* place, const json& value) {
    json file = word_piece({"a"});
    file[json::json_pointer(place)] = value;
    return file;
  };
  expect_refused(json::array(), {"object"});
  expect_refused(json::object(), {"\"model\"", "missing"});
  expect_refused(with("/more", 1), {"\"more\""});
  expect_refused(with("/truncation", {{"max_length", 8}}), {"truncation"});
  expect_refused(with("/model/type", "WordLevel"), {"model.type", "WordLevel", "BPE"});
  expect_refused(with("/model/unk_token", "?"), {"model.unk_token", "?"});
  expect_refused(with("/model/vocab/b", 1), {"model.vocab", "id 1"});
  expect_refused(with("/model/vocab/b", -1), {"model.vocab", "\"b\"", "-1"});
  expect_refused(with("/model/vocab/b", 1u << 31), {"model.vocab", "\"b\""});
  expect_refused(with("/normalizer", {{"type", "Nmt"}}), {"normalizer.type", "Nmt"});
  expect_refused(with("/normalizer", {{"type", "NFC"}, {"form", 1}}), {"normalizer", "\"form\""});
  expect_refused(with("/normalizer", {{"type", "Sequence"},
                                      {"normalizers", {{{"type", "NFC"}}, {{"type", "X"}}}}}),
                 {"normalizer.normalizers[1].type", "X"});
  expect_refused(with("/pre_tokenizer", {{"type", "UnicodeScripts"}}),
                 {"pre_tokenizer.type", "UnicodeScripts"});
  expect_refused(with("/pre_tokenizer", {{"type", "Split"},
                                         {"pattern", {{"Regex", "(a"}}},
                                         {"behavior", "Removed"},
                                         {"invert", false}}),
                 {"pre_tokenizer.pattern.Regex", "regular expression"});
  expect_refused(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}),
                 {"pre_tokenizer.replacement", "one character"});
  expect_refused(with("/decoder", {{"type", "CTC"}}), {"decoder.type", "CTC"});
  expect_refused(
      with("/post_processor", {{"type", "BertProcessing"}, {"sep", {"x", 77}}, {"cls", {"y", 0}}}),
      {"post_processor", "77"});
  expect_refused(with("/added_tokens", {{{"id", 5}, {"content", "a"}}}),
                 {"added_tokens[0].id", "1"});
  expect_refused(with("/added_tokens", {{{"id", 1}, {"content", "b"}}}),
                 {"added_tokens[0].id", "a"});

  json bpe = letters({{"a", "b"}});
  bpe["model"]["dropout"] = 0.1;
  expect_refused(bpe, {"model.dropout", "0.1"});
  bpe = letters({});
  bpe["model"]["merges"] = {"a b", "a"};
  expect_refused(bpe, {"model.merges[0]", "\"ab\""});
  bpe["model"]["merges"] = {"a"};
  expect_refused(bpe, {"model.merges[0]", "two tokens"});
}

TEST(Tokenizer, TextCannotGrowWithoutBound) {
  json file = word_piece({"a"});
  const json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(4096, 'a')}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {step, step, step, step}}};
  expect_error([&] { (void)make(file).encode("a"); }, {"Replace", "64"});
}

// A direct implementation of BPE's definition: joins the pair that comes first in the list of
// merges, and of equal pairs the leftmost.
Ids merged(const json& file, const std::string& word) {
  std::vector<std::string> parts;
  for (char c : word) parts.emplace_back(1, c);
  const json& merges = file.at("model").at("merges");
  for (bool found = true; found;) {
    found = false;
    for (const json& merge : merges) {
      for (std::size_t i = 0; i + 1 < parts.size() && !found; ++i)
        if (parts[i] == merge[0] && parts[i + 1] == merge[1]) {
          parts[i] += parts[i + 1];
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          found = true;
        }
      if (found) break;
    }
  }
  Ids ids;
  for (const std::string& part : parts)
    ids.push_back(file.at("model").at("vocab").at(part).get<TokenId>());
  return ids;
}

// Short words compare all pairs, long ones use a heap, and long ones are cut where no token joins:
// "dd" and "da" are in no token here.
TEST(Tokenizer, MergesWordsOfAnyLengthInTheSameOrder) {
  const json file = letters({{"a", "b"},
                             {"b", "c"},
                             {"ab", "c"},
                             {"a", "a"},
                             {"aa", "bc"},
                             {"c", "c"},
                             {"cc", "cc"},
                             {"ab", "ab"},
                             {"b", "d"},
                             {"c", "d"}});
  const Tokenizer tokenizer = make(file);
  std::mt19937 random(7);
  for (std::size_t size : {1u, 5u, 40u, 60u, 70u, 200u, 400u})
    for (int i = 0; i < 20; ++i) {
      std::string word;
      const unsigned alphabet = i % 2 ? 4 : 3;
      while (word.size() < size) word += static_cast<char>('a' + random() % alphabet);
      EXPECT_EQ(tokenizer.encode(word), merged(file, word)) << word;
    }
}

// Compares the scanners for known patterns with ICU, which gets the same pattern in brackets.
TEST(Tokenizer, FastScannersMatchAsTheirPatternsDo) {
  const std::string contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
                    spaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::vector<std::string> patterns = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      contractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" + spaces,
      contractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" + spaces};
  const std::vector<std::string> alphabet = {
      "a", "S",  "s",  "t",  "re",     "VE",   "ll",     "D",      "'",      "'",
      "'", "ſ",  "é",  "漢", "1",      "2",    "٣",      "½",      " ",      " ",
      " ", "  ", "\n", "\r", "\t",     "\v",   "\u00a0", "\u3000", "\u2028", "\u0085",
      ".", "!",  "-",  "_",  "\u0301", "🙂", "\u200d"};
  // A byte-level model without merges shows the bytes of a text, with the mark "#" where a piece
  // begins.
  json vocabulary = {{"#", 0}};
  for (char32_t c = 0x21; c < 0x144; ++c) {
    std::string character;
    if (c < 0x80)
      character = static_cast<char>(c);
    else
      character = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    if (!vocabulary.contains(character)) vocabulary[character] = vocabulary.size();
  }
  const auto tokenizer_of = [&](const std::string& pattern) {
    return make(
        {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}},
         {"pre_tokenizer",
          {{"type", "Sequence"},
           {"pretokenizers",
            {{{"type", "Split"},
              {"pattern", {{"Regex", pattern}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             {{"type", "Metaspace"},
              {"replacement", "#"},
              {"prepend_scheme", "always"},
              {"split", false}},
             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}}});
  };
  std::mt19937 random(11);
  for (const std::string& pattern : patterns) {
    const Tokenizer fast = tokenizer_of(pattern), slow = tokenizer_of("(?:" + pattern + ")");
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (auto left = random() % 12; left-- > 0;) text += alphabet[random() % alphabet.size()];
      ASSERT_EQ(fast.encode(text), slow.encode(text)) << json(text) << " " << pattern;
    }
  }
}

TEST(Tokenizer, MayBeUsedByThreads) {
  const Tokenizer tokenizer = make(letters({{"a", "b"}, {"c", "d"}, {"ab", "cd"}}));
  const std::string text = "abcdabdcabcd";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(3, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) wrong[t] += tokenizer.encode(text) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(3, 0));
}

// More different words than the cache holds.
TEST(Tokenizer, AFullCacheChangesNothing) {
  const Tokenizer tokenizer = make(word_piece({"1", "##1", "##2", "2"}));
  const auto number = [](unsigned bits) {
    std::string word;
    for (int i = 0; i < 17; ++i) word += (bits >> i & 1) ? '1' : '2';
    return word;
  };
  for (unsigned i = 0; i < 1u << 17; ++i) (void)tokenizer.encode(number(i));
  Ids expected = {1};
  for (int i = 1; i < 17; ++i) expected.push_back(2);
  EXPECT_EQ(tokenizer.encode(number(~0u)), expected);
}

}  // namespace
}  // namespace ebb::test
