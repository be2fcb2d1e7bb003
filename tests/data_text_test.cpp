// Words, bytes and token files as windows for a language model.
#include <gtest/gtest.h>

#include "ebb/data/text.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using namespace data;

std::vector<std::int32_t> all_of(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
  return tokens;
}

TEST(DataText, CountsWordsInOrderOfAppearance) {
  const TemporaryFolder folder;
  const auto train = folder.write("train.txt", " the cat <unk> \n\n the dog");
  const Vocabulary words = Vocabulary::of_text(train);
  ASSERT_EQ(words.size(), 5);
  EXPECT_EQ(words.word(0), "the");
  EXPECT_EQ(words.word(2), "<unk>");
  EXPECT_EQ(words.word(3), "<eos>");
  EXPECT_EQ(words.token("bird"), 2);
  EXPECT_EQ(all_of(TokenStream::words(train, words)),
            (std::vector<std::int32_t>{0, 1, 2, 3, 3, 0, 4, 3}));
  const auto valid = folder.write("valid.txt", "a dog\r\n");
  EXPECT_EQ(all_of(TokenStream::words(valid, words)), (std::vector<std::int32_t>{2, 4, 3}));
  expect_error([&] { words.word(5); }, {"token 5", "5"});
}

TEST(DataText, LimitsToTheMostFrequentWords) {
  const TemporaryFolder folder;
  const auto path = folder.write("train.txt", "x a b a c b\n");
  const Vocabulary words = Vocabulary::of_text(path, 4);
  ASSERT_EQ(words.size(), 4);
  EXPECT_EQ(words.word(0), "a");
  EXPECT_EQ(words.word(1), "b");
  EXPECT_EQ(words.word(2), "<eos>");
  EXPECT_EQ(words.word(3), "<unk>");
  EXPECT_EQ(all_of(TokenStream::words(path, words)),
            (std::vector<std::int32_t>{3, 0, 1, 0, 3, 1, 2}));
  EXPECT_EQ(Vocabulary::of_text(path, 100).size(), 6);
}

TEST(DataText, KeepsWordsThatCrossPiecesOfTheFile) {
  const TemporaryFolder folder;
  const std::string filler((1 << 20) - 3, ' ');
  const auto path = folder.write("train.txt", filler + "crossing words\n");
  const Vocabulary words = Vocabulary::of_text(path);
  EXPECT_EQ(words.word(0), "crossing");
  EXPECT_EQ(words.word(1), "words");
}

TEST(DataText, ReadsTokenFilesOfEveryWidth) {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  EXPECT_EQ(all_of(TokenStream::bytes(folder.write("t", "a\xff\0"s))),
            (std::vector<std::int32_t>{97, 255, 0}));
  EXPECT_EQ(
      all_of(TokenStream::file(folder.write("u", "\x01\x02\xff\xff"s), TokenWidth::uint16, 65536)),
      (std::vector<std::int32_t>{513, 65535}));
  EXPECT_EQ(all_of(TokenStream::file(folder.write("i", "\x01\x02\x03\0\x09\0\0\0"s),
                                     TokenWidth::int32, 1 << 20)),
            (std::vector<std::int32_t>{0x030201, 9}));
}

TEST(DataText, WindowsAreShiftedByOne) {
  const TokenStream stream = TokenStream::of({0, 1, 2, 3, 4, 5, 6}, 7);
  const WindowDataset windows(stream, {.sequence = 3});
  EXPECT_EQ(windows.size(), 2);
  const std::int64_t items[] = {1, 0};
  const Batch batch = windows.batch(items, {});
  EXPECT_EQ(batch.types(), windows.types(2));
  EXPECT_EQ(batch.x().to_vector<std::int32_t>(), (std::vector<std::int32_t>{3, 4, 5, 0, 1, 2}));
  EXPECT_EQ(batch.y().to_vector<std::int32_t>(), (std::vector<std::int32_t>{4, 5, 6, 1, 2, 3}));

  const WindowDataset dense(stream, {.sequence = 3, .stride = 1, .dtype = i64});
  EXPECT_EQ(dense.size(), 4);
  const std::int64_t last[] = {3};
  EXPECT_EQ(dense.batch(last, {}).y().to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{4, 5, 6}));
}

TEST(DataText, NamesWhatIsWrong) {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  const auto empty = folder.write("empty.txt", ""), blank = folder.write("blank.txt", " \n\n");
  expect_error([&] { Vocabulary::of_text(folder.path() / "none"); }, {"none", "cannot open"});
  expect_error([&] { Vocabulary::of_text(folder.path()); }, {"not a regular file"});
  expect_error([&] { Vocabulary::of_text(empty); }, {"empty.txt", "words"});
  expect_error([&] { Vocabulary::of_text(blank); }, {"blank.txt", "words"});
  expect_error([&] { Vocabulary::of_text(blank, 1); }, {"at least 2", "1"});
  expect_error([&] { TokenStream::bytes(empty); }, {"empty.txt", "empty"});
  const auto odd = folder.write("odd.bin", "abcde");
  expect_error([&] { TokenStream::file(odd, TokenWidth::uint16, 10); }, {"odd.bin", "2", "5"});
  expect_error([&] { TokenStream::file(odd, TokenWidth::uint8, 0); }, {"vocabulary", "0"});
  const TokenStream high =
      TokenStream::file(folder.write("high.bin", "\0\0\x0a\0\0\0"s), TokenWidth::uint16, 10);
  expect_error([&] { all_of(high); }, {"high.bin", "offset 2", "[0, 10)", "10"});
  const TokenStream negative = TokenStream::file(folder.write("negative.bin", "\xff\xff\xff\xff"),
                                                 TokenWidth::int32, 0x7fffffff);
  expect_error([&] { all_of(negative); }, {"offset 0"});

  const TokenStream shrinking = TokenStream::bytes(folder.write("shrinking", "0123456789"));
  std::filesystem::resize_file(folder.path() / "shrinking", 4);
  expect_error([&] { all_of(shrinking); }, {"shrinking", "6 more bytes", "offset 4"});

  const TokenStream three = TokenStream::of({0, 1, 2}, 3);
  expect_error([&] { TokenStream::of({0, 3}, 3); }, {"[0, 3)", "3"});
  expect_error([&] { WindowDataset(three, {.sequence = 3}); }, {"3", "[WindowDataset]"});
  expect_error([&] { WindowDataset(three, {.sequence = 0}); }, {"positive", "0"});
  expect_error([&] { WindowDataset(three, {.sequence = 2, .dtype = f32}); }, {"float32"});
  const WindowDataset windows(three, {.sequence = 2});
  const std::int64_t beyond[] = {1};
  expect_error([&] { windows.batch(beyond, {}); }, {"item 1"});
}

}  // namespace
}  // namespace ebb::test
