// Compares ids and decoded text with the Python package `tokenizers`, for tokenizers with the
// settings of real models. tests/golden/tokenizers.json.gz is written by
// tools/compare_tokenizers.py --golden.
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "ebb/text/tokenizer.h"

namespace ebb::test {
namespace {

using nlohmann::json;
using text::Specials;
using text::TokenId;
using text::Tokenizer;

json golden() {
  const gzFile file = gzopen(EBB_GOLDEN_FOLDER "/tokenizers.json.gz", "rb");
  std::string all;
  std::array<char, 1 << 16> buffer;
  for (int size = 0; file && (size = gzread(file, buffer.data(), buffer.size())) > 0;)
    all.append(buffer.data(), static_cast<std::size_t>(size));
  if (file) gzclose(file);
  return json::parse(all);
}

TEST(TokenizerGolden, IdsAndTextsAreThoseOfThePackage) {
  std::set<std::string> kinds;
  for (const json& row : golden()) {
    const auto kind = row.at("kind").get<std::string>();
    SCOPED_TRACE(kind);
    kinds.insert(kind);
    const Tokenizer tokenizer = Tokenizer::parse(row.at("tokenizer").get<std::string>());
    const json &strings = row.at("strings"), &results = row.at("results");
    ASSERT_GE(strings.size(), 100u);
    ASSERT_EQ(strings.size(), results.size());
    for (std::size_t i = 0; i < strings.size(); ++i) {
      const auto string = strings[i].get<std::string>();
      SCOPED_TRACE(string);
      const auto plain = results[i][0].get<std::vector<TokenId>>(),
                 special = results[i][1].get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer.encode(string), plain);
      EXPECT_EQ(tokenizer.encode(string, Specials::with), special);
      EXPECT_EQ(tokenizer.decode(special), results[i][2].get<std::string>());
      for (TokenId id : special) EXPECT_EQ(tokenizer.id(*tokenizer.token(id)), id);
    }
  }
  EXPECT_GE(kinds.size(), 13u);
}

}  // namespace
}  // namespace ebb::test
