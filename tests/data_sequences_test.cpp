// Texts of tokens: how they are read, cut, padded and packed.
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "ebb/data/sequences.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using data::TokenSequence;
using Ids = std::vector<std::int32_t>;

Ids counted(std::int32_t first, std::size_t count) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids ids_of(const Batch& batch, std::size_t tensor) {
  return batch.tensors.at(tensor).to_vector<std::int32_t>();
}

TEST(Sequences, DocumentsAreReadByTheirKeys) {
  const TemporaryFolder folder;
  const auto path = folder / "a.jsonl";
  std::ofstream(path) << "{\"text\": \"one\", \"id\": 7}\n\n{\"answer\": \"b\", \"prompt\": \"a\"}";
  const auto read = data::read_documents(path);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].text, "one");
  EXPECT_FALSE(read[0].has_prompt);
  EXPECT_EQ(read[1].prompt, "a");
  EXPECT_EQ(read[1].text, "b");
  EXPECT_TRUE(read[1].has_prompt);
}

TEST(Sequences, EveryTargetIsInExactlyOnePart) {
  for (const std::int64_t window : {1, 2, 3, 5, 8, 20})
    for (const std::size_t length : {2u, 3u, 7u, 12u})
      for (std::int64_t first = 1; first < static_cast<std::int64_t>(length); ++first) {
        const TokenSequence whole{counted(0, length), first};
        std::vector<int> predicted(length);
        for (const TokenSequence& part : data::cut_to(whole, window)) {
          EXPECT_LE(static_cast<std::int64_t>(part.tokens.size()), window + 1);
          ASSERT_GE(part.first_target, 1);
          ASSERT_LT(part.first_target, static_cast<std::int64_t>(part.tokens.size()));
          for (std::size_t i = static_cast<std::size_t>(part.first_target); i < part.tokens.size();
               ++i) {
            EXPECT_EQ(part.tokens[i], part.tokens[i - 1] + 1);  // what comes before it is its own
            ++predicted[static_cast<std::size_t>(part.tokens[i])];
          }
        }
        for (std::size_t i = 0; i < length; ++i)
          EXPECT_EQ(predicted[i], static_cast<std::int64_t>(i) >= first ? 1 : 0)
              << window << " " << length << " " << first << " " << i;
      }
}

TEST(Sequences, ALongPromptLosesItsBeginning) {
  const auto parts = data::cut_to({counted(0, 10), 8}, 4);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].tokens, counted(5, 5));
  EXPECT_EQ(parts[0].first_target, 3);
}

TEST(Sequences, ArePaddedAndPackedWithoutLoss) {
  const std::vector<TokenSequence> sequences{
      {counted(10, 3), 1}, {counted(20, 5), 3}, {counted(30, 4), 1}};
  const data::SequenceOptions options{.sequence = 6, .padding = 9};
  const std::vector<std::int64_t> all{0, 1, 2};
  const data::SequenceDataset padded(sequences, options);
  const Batch rows = padded.batch(all, {});
  EXPECT_EQ(ids_of(rows, 0), (Ids{10, 11, 9, 9, 9, 9, 20, 21, 22, 23, 9, 9, 30, 31, 32, 9, 9, 9}));
  EXPECT_EQ(ids_of(rows, 1), (Ids{11, 12, -100, -100, -100, -100, -100, -100, 23, 24, -100, -100,
                                  31, 32, 33, -100, -100, -100}));
  // The longest first, then the others where they fit.
  const data::PackedDataset packed(sequences, options);
  ASSERT_EQ(packed.size(), 2);
  const Batch items = packed.batch(std::vector<std::int64_t>{0, 1}, {});
  EXPECT_EQ(ids_of(items, 0), (Ids{20, 21, 22, 23, 10, 11, 30, 31, 32, 9, 9, 9}));
  EXPECT_EQ(ids_of(items, 1), (Ids{-100, -100, 23, 24, 11, 12, 31, 32, 33, -100, -100, -100}));
  EXPECT_EQ(ids_of(items, 2), (Ids{0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(packed.tokens(), 12);
}

TEST(Sequences, Errors) {
  expect_error([] { data::cut_to({counted(0, 3), 3}, 4); }, {"3 tokens", "none to predict"});
  expect_error(
      [] {
        data::SequenceDataset({{counted(0, 6), 1}}, {.sequence = 4});
      },
      {"SequenceDataset", "at most 5", "6"});
  expect_error(
      [] {
        data::PackedDataset({{counted(0, 3), 0}}, {.sequence = 4});
      },
      {"PackedDataset", "from 0"});
  expect_error(
      [] {
        data::LabelledTokenDataset({{counted(0, 5), 1}}, {.sequence = 4});
      },
      {"LabelledTokenDataset", "at most 4", "5"});
}

}  // namespace
}  // namespace ebb::test
