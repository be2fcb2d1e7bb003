// Training and test data of workloads share no item, and data too small for both is an error that
// gives the sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "ebb/data/text.h"
#include "ebb/workloads/workload.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"
#include "workloads/random_parts.h"

namespace ebb::test {
namespace {

using workloads::make_workload;
using workloads::Options;
using workloads::Workload;

constexpr std::int64_t sequence = 8;

Options tiny_gpt2(const std::filesystem::path& data) {
  Options options;
  options.name = "gpt2";
  options.layers = 1, options.width = 8, options.heads = 1, options.sequence = sequence;
  options.batch = 2;
  options.data = data;
  return options;
}

// Every token of every window, targets too.
std::set<std::int32_t> tokens_of(const data::Dataset& dataset) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(dataset.size()));
  std::iota(all.begin(), all.end(), 0);
  std::set<std::int32_t> tokens;
  for (const Tensor& t : dataset.batch(all, {}).tensors)
    for (std::int32_t token : t.to_vector<std::int32_t>()) tokens.insert(token);
  return tokens;
}

std::vector<std::int32_t> overlap(const Workload& task) {
  const auto train = tokens_of(*task.train), test = tokens_of(*task.test);
  std::vector<std::int32_t> both;
  std::set_intersection(train.begin(), train.end(), test.begin(), test.end(),
                        std::back_inserter(both));
  return both;
}

// Files in which no token occurs twice, so that a shared one is noticed.
TEST(HeldOut, TextsAndTokenFiles) {
  const TemporaryFolder folder;
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  std::vector<std::int32_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::string raw(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
  for (const auto& file : {folder.write("text.txt", bytes), folder.write("tokens.bin", raw)}) {
    const auto task = make_workload(tiny_gpt2(file));
    EXPECT_TRUE(overlap(*task).empty()) << file;
    const auto& train = task->train_part;
    const auto& test = task->test_part;
    EXPECT_EQ(train.items, task->train->size());
    EXPECT_EQ(test.items, task->test->size());
    EXPECT_GE(test.items, 1);
    EXPECT_EQ(*train.tokens + *test.tokens, file.extension() == ".bin" ? 1000 : 256);
    EXPECT_EQ(*test.tokens, file.extension() == ".bin" ? 100 : 25);
    EXPECT_NE(train.source.find(file.filename().string()), std::string::npos);
    EXPECT_NE(train.source, test.source);
  }
}

// Words of the held-out part are no part of the vocabulary.
TEST(HeldOut, FoldersWithOneText) {
  for (const char* name : {"input.txt", "valid.txt", "train.txt"}) {
    const TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 200; ++i) text.append("w").append(std::to_string(i)).append(" ");
    folder.write(name, text + "\n");  // 201 tokens with the end of the line
    Options options = tiny_gpt2(folder.path());
    options.tokens = "words";
    const auto task = make_workload(options);
    EXPECT_EQ(*task->train_part.tokens, 181) << name;
    EXPECT_EQ(*task->test_part.tokens, 20) << name;
    const auto train = tokens_of(*task->train);
    EXPECT_LE(train.size(), 181u);
    const auto words = data::Vocabulary::of_text(folder / name, data::Vocabulary::no_limit, 181);
    EXPECT_EQ(words.size(), 181 + 2);  // "<eos>" and "<unk>" too
    EXPECT_EQ(data::Vocabulary::of_text(folder / name, 5, 181).size(), 5);
    EXPECT_EQ(words.token("w190"), words.token("<unk>"));
  }
}

TEST(HeldOut, FoldersWithTwoTexts) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "a b c ";
  folder.write("input.txt", text);
  folder.write("valid.txt", text);
  const auto task = make_workload(tiny_gpt2(folder.path()));
  EXPECT_NE(task->train_part.source.find("input.txt"), std::string::npos);
  EXPECT_NE(task->test_part.source.find("valid.txt"), std::string::npos);
}

std::string idx(std::initializer_list<std::uint32_t> header, const std::string& bytes) {
  std::string text;
  for (std::uint32_t word : header)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(word >> shift & 255);
  return text + bytes;
}

void write_mnist(const TemporaryFolder& folder, const std::string& prefix, std::uint32_t count) {
  std::string pixels, labels;
  for (std::uint32_t i = 0; i < count; ++i)
    pixels += std::string(4, static_cast<char>(i)), labels += static_cast<char>(i % 10);
  folder.write(prefix + "-images-idx3-ubyte", idx({0x0803, count, 2, 2}, pixels));
  folder.write(prefix + "-labels-idx1-ubyte", idx({0x0801, count}, labels));
}

// A file sorted by class: every class is tested, from the first batch on, and trained.
TEST(HeldOut, LabelledTextsInOrderOfClass) {
  constexpr int classes = 4, each = 50;
  const TemporaryFolder folder;
  std::string csv, jsonl;
  for (int label = 0; label < classes; ++label)
    for (int i = 0; i < each; ++i) {
      const std::string text = "w" + std::to_string(label * each + i);
      csv.append(std::to_string(label + 1)).append(",").append(text).append("\n");
      jsonl.append(R"({"text": ")").append(text).append(R"(", "label": )");
      jsonl.append(std::to_string(label)).append("}\n");
    }
  Options options;
  options.name = "bert", options.layers = 1, options.width = 8, options.heads = 1;
  options.classes = classes, options.sequence = 4, options.batch = 2;
  options.vocabulary = 1 << 20;  // hashed words that do not meet
  const auto labels = [](const data::Dataset& items, std::int64_t count) {
    std::vector<std::int64_t> first(static_cast<std::size_t>(count));
    std::iota(first.begin(), first.end(), 0);
    std::vector<int> counts(classes);
    for (const std::int32_t label : items.batch(first, {}).y().to_vector<std::int32_t>())
      ++counts[static_cast<std::size_t>(label)];
    return counts;
  };
  std::vector<std::set<std::int32_t>> tested;
  for (const auto& [file, seed] : {std::pair{folder.write("sorted.csv", csv), 0},
                                   {folder / "sorted.csv", 7},
                                   {folder.write("sorted.jsonl", jsonl), 0}}) {
    options.data = file, options.seed = static_cast<std::uint64_t>(seed);
    const auto task = make_workload(options);
    EXPECT_EQ(labels(*task->test, classes), std::vector<int>(classes, 1)) << file;
    EXPECT_EQ(labels(*task->test, task->test->size()), std::vector<int>(classes, each / 10));
    EXPECT_EQ(labels(*task->train, task->train->size()),
              std::vector<int>(classes, each - each / 10));
    const auto ids = [](const data::Dataset& items) {
      std::vector<std::int64_t> all(static_cast<std::size_t>(items.size()));
      std::iota(all.begin(), all.end(), 0);
      std::set<std::int32_t> words;
      for (const std::int32_t id : items.batch(all, {}).x().to_vector<std::int32_t>())
        if (id > 1) words.insert(id);  // 0 and 1: padding and the start of a text
      return words;
    };
    const std::set<std::int32_t> test = ids(*task->test), train = ids(*task->train);
    std::vector<std::int32_t> both;
    std::set_intersection(train.begin(), train.end(), test.begin(), test.end(),
                          std::back_inserter(both));
    EXPECT_TRUE(both.empty()) << file;
    EXPECT_NE(task->test_part.source.find("20 of its 200 texts, drawn at random"),
              std::string::npos)
        << task->test_part.source;
    tested.push_back(test);
  }
  // The texts are the same for any seed and any file format.
  EXPECT_EQ(tested[0], tested[1]);
  EXPECT_EQ(tested[0], tested[2]);
}

// Classes of unequal size are held out by their shares, rounded up or down, and the order of items
// only changes which ones are drawn.
TEST(HeldOut, SharesOfClasses) {
  std::vector<std::int32_t> labels(1000, 0);
  std::fill(labels.begin() + 700, labels.begin() + 995, 1);
  std::fill(labels.begin() + 995, labels.end(), 2);  // five
  const workloads::Parts parts = workloads::random_parts(labels, "data");
  EXPECT_EQ(parts.test.size(), 100u);
  EXPECT_TRUE(std::is_sorted(parts.train.begin(), parts.train.end()));
  std::vector<std::int64_t> counts(3);
  for (const std::int64_t item : parts.test)
    ++counts[static_cast<std::size_t>(labels[static_cast<std::size_t>(item)])];
  EXPECT_NEAR(static_cast<double>(counts[0]), 70.0, 1.0);
  EXPECT_NEAR(static_cast<double>(counts[1]), 29.5, 1.5);
  EXPECT_LE(counts[2], 1);
  EXPECT_FALSE(std::is_sorted(parts.test.begin(), parts.test.end()));
  expect_error([] { (void)workloads::random_parts(1, "data"); }, {"data", "there are 1"});
}

TEST(HeldOut, OneSetOfImages) {
  for (const char* prefix : {"t10k", "train"}) {
    const TemporaryFolder folder;
    write_mnist(folder, prefix, 50);
    Options options;
    options.name = "mlp", options.hidden = 4, options.batch = 5, options.data = folder.path();
    const auto task = make_workload(options);
    EXPECT_EQ(task->train->size(), 45);
    EXPECT_EQ(task->test->size(), 5);
    EXPECT_NE(task->test_part.source.find("5 of its 50 images, drawn at random"), std::string::npos)
        << task->test_part.source;
    // Five of ten classes that are equally frequent.
    const std::vector<std::int64_t> all{0, 1, 2, 3, 4};
    const auto labels = task->test->batch(all, {}).y().to_vector<std::int32_t>();
    EXPECT_EQ(std::set<std::int32_t>(labels.begin(), labels.end()).size(), 5u);
    options.batch = 46;
    expect_error([&] { make_workload(options); }, {"46 items", "45"});
  }
}

TEST(HeldOut, DataThatIsTooSmall) {
  const TemporaryFolder folder;
  const std::int64_t least = 2 * (sequence + 1);
  const auto small = folder.write("small.txt", std::string(least - 1, 'x'));
  expect_error([&] { make_workload(tiny_gpt2(small)); }, {"small.txt", "9 tokens", "17 tokens"});
  Options options = tiny_gpt2(folder.write("enough.txt", std::string(least, 'x')));
  options.batch = 1;
  EXPECT_EQ(make_workload(options)->train->size(), 1);
  options.batch = 2;
  expect_error([&] { make_workload(options); }, {"2 items", "a batch", "1 item", "enough.txt"});
  Options bert;
  bert.name = "bert", bert.layers = 1, bert.width = 8, bert.heads = 1, bert.classes = 2;
  bert.sequence = 8, bert.vocabulary = 64, bert.batch = 1;
  bert.data = folder.write("one.csv", "1,\"a\"\n");
  expect_error([&] { make_workload(bert); }, {"one.csv", "there are 1"});
  bert.data = folder.write("two.csv", "1,\"a\"\n2,\"b\"\n");
  EXPECT_EQ(make_workload(bert)->test->size(), 1);
}

TEST(HeldOut, PartsOfStreams) {
  const auto all = data::TokenStream::of({0, 1, 2, 3, 4, 5}, 6);
  const auto some = all.part(1, 5).part(1, 4);
  EXPECT_EQ(some.size(), 3);
  std::vector<std::int32_t> read(3);
  some.read(0, read);
  EXPECT_EQ(read, (std::vector<std::int32_t>{2, 3, 4}));
  expect_error([&] { some.read(1, read); }, {"there are 3"});
  expect_error([&] { all.part(3, 7); }, {"[3, 7)", "there are 6"});
}

}  // namespace
}  // namespace ebb::test
