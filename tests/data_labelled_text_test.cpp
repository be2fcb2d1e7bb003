// Labelled texts from CSV and JSON lines, and their tokens.
#include <gtest/gtest.h>

#include "ebb/data/labelled_text.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using namespace data;
using namespace std::string_literals;

TEST(DataLabelledText, ReadsCsvAsRfc4180Says) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.csv",
                                 "label,title,description\r\n"
                                 "3,plain,text\r\n"
                                 "\"1\",\"a, \"\"b\"\"\",\"two\nlines\"\n"
                                 "\n"
                                 "4,,last");
  const LabelledTextsPtr set = read_labelled_csv(path, 4);
  EXPECT_EQ(set->labels, (std::vector<std::int32_t>{2, 0, 3}));
  EXPECT_EQ(set->texts, (std::vector<std::string>{"plain text", "a, \"b\" two\nlines", " last"}));
  EXPECT_EQ(read_labelled_csv(folder.write("b.csv", "2,no header\n"), 4)->texts.size(), 1u);
}

TEST(DataLabelledText, NamesTheLineOfBadCsv) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& text, std::vector<std::string> parts) {
    const auto path = folder.write("bad.csv", text);
    parts.push_back("bad.csv");
    expect_error([&] { read_labelled_csv(path, 4); }, parts);
  };
  error("", {"none"});
  error("label,text\n", {"none"});
  error("1,a\n5,b\n", {"line 2", "1 to 4", "\"5\""});
  error("1,a\n0,b\n", {"line 2", "\"0\""});
  error("1,a\n 2,b\n", {"line 2"});
  error("1,a\n99999999999999999999,b\n", {"line 2"});
  error("1,\"two\nlines\"\n1x,b\n", {"line 3", "1x"});
  error("1,a\n1,a,b\n", {"line 2", "2 fields", "3"});
  error("1\n", {"line 1", "one field"});
  error("1,\"open\n\n", {"line 1", "closing"});
  error("1,\"a\"b\n", {"line 1", "0x62"});
  error("1,a\"b\n", {"line 1", "quote"});
  error("\"", {"line 1", "closing"});
  expect_error([&] { read_labelled_csv(folder.path() / "none.csv", 4); }, {"none.csv", "open"});
  expect_error([&] { read_labelled_csv(folder.path() / "none.csv", 0); }, {"0"});
}

TEST(DataLabelledText, ReadsJsonLines) {
  const TemporaryFolder folder;
  const auto path = folder.write("a.jsonl",
                                 "{\"text\": \"h\\u00e9\", \"label\": 1, \"id\": 7}\n\n"
                                 "{\"label\": 0, \"text\": \"\"}");
  const LabelledTextsPtr set = read_labelled_jsonl(path, 2);
  EXPECT_EQ(set->labels, (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(set->texts, (std::vector<std::string>{"h\xc3\xa9", ""}));
}

TEST(DataLabelledText, NamesTheLineOfBadJson) {
  const TemporaryFolder folder;
  const std::string good = "{\"text\": \"a\", \"label\": 1}\n";
  const auto error = [&](const std::string& line, std::vector<std::string> parts) {
    const auto path = folder.write("bad.jsonl", good + line);
    parts.insert(parts.end(), {"bad.jsonl", "line 2"});
    expect_error([&] { read_labelled_jsonl(path, 2); }, parts);
  };
  error("{", {"not JSON"});
  error("\xff", {"not JSON"});
  error("{\"text\": \"\xff\", \"label\": 1}", {"not JSON"});
  error(std::string(100'000, '['), {"nested"});
  error("[1]", {"no \"text\""});
  error("{\"text\": \"a\"}", {"no \"label\""});
  error("{\"text\": 1, \"label\": 1}", {"string", "number"});
  error("{\"text\": \"a\", \"label\": 2}", {"0 to 1", "2"});
  error("{\"text\": \"a\", \"label\": -1}", {"-1"});
  error("{\"text\": \"a\", \"label\": 1.0}", {"1.0"});
  error("{\"text\": \"a\", \"label\": 18446744073709551615}", {"18446744073709551615"});
  error("{\"text\": \"a\", \"label\": \"1\"}", {"label of 0 to 1", "\"1\""});
  const auto empty = folder.write("empty.jsonl", "\n");
  expect_error([&] { read_labelled_jsonl(empty, 2); }, {"empty.jsonl", "none"});
}

LabelledTextsPtr texts(std::vector<std::string> list) {
  auto set = std::make_shared<LabelledTexts>();
  set->classes = 1;
  set->labels.resize(list.size());
  set->texts = std::move(list);
  return set;
}

TEST(DataLabelledText, PadsAndCutsBytes) {
  const LabelledTextDataset dataset(texts({"ab", "\xff\0cd"s, ""}),
                                    {.sequence = 4, .tokens = TextTokens::bytes});
  EXPECT_EQ(dataset.vocabulary(), 258);
  const std::int64_t items[] = {0, 1, 2};
  const Batch batch = dataset.batch(items, {});
  EXPECT_EQ(batch.types(), dataset.types(3));
  EXPECT_EQ(batch.x().to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{1, 99, 100, 0, 1, 257, 2, 101, 1, 0, 0, 0}));
  EXPECT_EQ(values_of(batch.tensors[2]), (std::vector<double>{1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0}));
}

TEST(DataLabelledText, HashesWords) {
  const LabelledTextDataset dataset(texts({"The cat's", "the CAT ' S", "dog"}),
                                    {.sequence = 6, .vocabulary = 100'000});
  const std::int64_t items[] = {0, 1, 2};
  const std::vector<std::int32_t> ids = dataset.batch(items, {}).x().to_vector<std::int32_t>();
  EXPECT_EQ(std::vector(ids.begin(), ids.begin() + 6),
            std::vector(ids.begin() + 6, ids.begin() + 12));
  // FNV-1a of "dog", worked out apart from this code.
  EXPECT_EQ(ids[13], static_cast<std::int32_t>(2 + 0xCAAF3B18F47478E9ull % 99'998));
  EXPECT_EQ(ids[5], 0);
  for (std::int32_t id : ids) EXPECT_LT(id, dataset.vocabulary());
}

TEST(DataLabelledText, RefusesOptionsThatCannotBe) {
  expect_error([] { LabelledTextDataset(texts({})); }, {"texts"});
  expect_error([] { LabelledTextDataset(texts({"a"}), {.sequence = 1}); }, {"1"});
  expect_error([] { LabelledTextDataset(texts({"a"}), {.vocabulary = 2}); }, {"more than 2"});
}

}  // namespace
}  // namespace ebb::test
