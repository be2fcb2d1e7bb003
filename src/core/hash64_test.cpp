#include "core/hash64.h"

#include <gtest/gtest.h>

namespace ebb::test {
namespace {

// Published values of XXH64 with seed 0.
TEST(Hash64, GivesThePublishedValues) {
  EXPECT_EQ(hex(Hash64().value()), "ef46db3751d8e999");
  EXPECT_EQ(hex(Hash64().add("a").value()), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hex(Hash64().add("abc").value()), "44bc2cf5ad770999");
  EXPECT_EQ(hex(Hash64().add("Nobody inspects the spammish repetition").value()),
            "fbcea83c8a378bf1");
}

TEST(Hash64, DoesNotDependOnHowBytesArePieced) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * i + 7 * i);
  const std::uint64_t whole = Hash64().add(text).value();
  for (std::size_t cut = 0; cut <= text.size(); cut += 7) {
    const std::string_view all = text;
    EXPECT_EQ(Hash64().add(all.substr(0, cut)).add(all.substr(cut)).value(), whole) << cut;
    const Hash64::State state = Hash64().add(all.substr(0, cut)).state();
    EXPECT_EQ(Hash64::from(state).add(all.substr(cut)).value(), whole) << cut;
  }
}

TEST(Hash64, SeesEverySingleBit) {
  std::string text(75, 'x');
  const std::uint64_t whole = Hash64().add(text).value();
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Hash64().add(text).value(), whole) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace ebb::test
