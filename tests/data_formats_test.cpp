// Files in the forms in which people have them: compressed text, nanoGPT's tokens, folders of
// images, labels that count from 0 or 1, and vocabularies that are saved with the model.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>

#include "data/nanogpt_meta.h"
#include "ebb/data/image_folder.h"
#include "ebb/data/labelled_text.h"
#include "ebb/data/text.h"
#include "ebb/error.h"
#include "ebb/text/tokenizer.h"
#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/workload.h"
#include "support/nanogpt_meta.h"
#include "support/temporary_folder.h"
#include "support/text_file.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using workloads::make_workload;
using workloads::Options;

void expect_error(const std::function<void()>& call, std::initializer_list<const char*> parts) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    for (const char* part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

void write_gzip(const fs::path& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

Options tiny(const fs::path& data) {
  Options options;
  options.name = "gpt2", options.layers = 1, options.width = 8, options.heads = 1;
  options.sequence = 8, options.batch = 2, options.data = data;
  return options;
}

std::vector<std::int32_t> first_tokens(const workloads::Workload& task) {
  const std::int64_t item = 0;
  return task.train->batch({&item, 1}, {}).x().to_vector<std::int32_t>();
}

std::string some_text() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += i % 4 == 3 ? "end\n" : "word" + std::to_string(i % 5) + " ";
  return text;
}

// --- Text

TEST(DataFormats, CompressedTextIsTheSameText) {
  const TemporaryFolder folder;
  const fs::path plain = folder.write("a.txt", some_text());
  write_gzip(folder / "a.txt.gz", some_text());
  const auto one = make_workload(tiny(plain)), other = make_workload(tiny(folder / "a.txt.gz"));
  EXPECT_EQ(first_tokens(*one), first_tokens(*other));
  EXPECT_EQ(one->train->size(), other->train->size());
  const auto words = data::Vocabulary::of_text(folder / "a.txt.gz");
  EXPECT_EQ(words.size(), data::Vocabulary::of_text(plain).size());
  const std::string whole = contents(folder / "a.txt.gz");
  folder.write("cut.txt.gz", whole.substr(0, whole.size() / 2));
  expect_error([&] { data::TokenStream::bytes(folder / "cut.txt.gz"); }, {"cut.txt.gz", "gzip"});
}

// A text gives the same tokens whether it is named or found in a folder.
TEST(DataFormats, AFileAndItsFolderGiveTheSameTokens) {
  for (const char* name : {"input.txt", "train.txt", "ptb.train.txt"}) {
    const TemporaryFolder folder;
    const fs::path file = folder.write(name, some_text());
    const auto named = make_workload(tiny(file)), found = make_workload(tiny(folder.path()));
    EXPECT_EQ(first_tokens(*named), first_tokens(*found)) << name;
    EXPECT_EQ(named->settings.tokens, found->settings.tokens);
    EXPECT_EQ(*named->settings.tokens, file.filename() == "ptb.train.txt" ? "words" : "bytes");
    EXPECT_NE(found->train_part.source.find("read as " + *found->settings.tokens),
              std::string::npos);
    Options words = tiny(folder.path());
    words.tokens = "words";
    EXPECT_EQ(*make_workload(words)->settings.tokens, "words");
  }
}

TEST(DataFormats, TheVocabularyTurnsTokensBackIntoText) {
  const TemporaryFolder folder;
  const std::string text = some_text();
  for (const char* kind : {"bytes", "words"}) {
    Options options = tiny(folder.write("input.txt", text));
    options.tokens = kind;
    const auto task = make_workload(options);
    const auto tokenizer = text::Tokenizer::parse(task->tokenizer_json);
    const std::vector<std::int32_t> tokens = first_tokens(*task);
    const std::vector<std::int32_t> encoded = tokenizer.encode(text);
    ASSERT_GE(encoded.size(), tokens.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), encoded.begin())) << kind;
    EXPECT_TRUE(tokenizer.decode(tokens).starts_with("word0")) << tokenizer.decode(tokens);
    ASSERT_TRUE(task->save(folder / kind));
    EXPECT_EQ(contents(folder / kind / "tokenizer.json"), task->tokenizer_json);
  }
}

// An algorithm quadratic in the vocabulary would take minutes here.
TEST(DataFormats, LargeVocabulariesAreSavedInTime) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += fmt::format("w{} ", i);
  Options options;
  options.name = "lm", options.data = folder.write("words.txt", text), options.tokens = "words";
  const std::clock_t begin = std::clock();
  const auto task = make_workload(options);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 30.0);
  EXPECT_EQ(task->settings.tokens, "words");
  EXPECT_NE(task->tokenizer_json.find("\"w53999\""), std::string::npos);
}

TEST(DataFormats, TokensOfTwoBytesAreKnownByTheirValues) {
  const TemporaryFolder folder;
  std::string narrow, wide;
  for (int i = 0; i < 400; ++i) {
    const int token = 300 + i % 50;
    narrow += static_cast<char>(token & 255), narrow += static_cast<char>(token >> 8);
    wide += static_cast<char>(token & 255), wide += static_cast<char>(token >> 8);
    wide += '\0', wide += '\0';
  }
  Options options = tiny(folder.write("train.bin", narrow));
  options.vocabulary = 1000;
  const auto two = make_workload(options);
  EXPECT_EQ(*two->settings.tokens, "uint16");
  EXPECT_NE(two->train_part.source.find("read as uint16"), std::string::npos);
  options.data = folder.write("wide.bin", wide);
  const auto four = make_workload(options);
  EXPECT_EQ(*four->settings.tokens, "int32");
  EXPECT_EQ(first_tokens(*two), first_tokens(*four));
  // nanoGPT's folder: train.bin and val.bin.
  folder.write("val.bin", narrow);
  options.data = folder.path();
  EXPECT_NE(make_workload(options)->test_part.source.find("val.bin"), std::string::npos);
  // A width that is given is not guessed.
  options.data = folder / "train.bin", options.tokens = "int32";
  expect_error([&] { first_tokens(*make_workload(options)); }, {"train.bin", "[0, 1000)"});
  options.tokens = "words";
  expect_error([&] { make_workload(options); }, {"train.bin", "uint16, int32 or bytes"});
  options.tokens.reset(), options.vocabulary = 20;
  expect_error([&] { make_workload(options); }, {"train.bin", "vocabulary of 20"});
}

// --- nanoGPT's meta.pkl

TEST(DataFormats, NanoGptsVocabularyIsReadAndSaved) {
  for (int protocol : {2, 4}) {
    const TemporaryFolder folder;
    std::string tokens;
    for (int i = 0; i < 200; ++i) tokens += static_cast<char>(i % 3), tokens += '\0';
    folder.write("train.bin", tokens), folder.write("val.bin", tokens);
    folder.write("meta.pkl", nanogpt_meta(protocol));
    const auto found = make_workload(tiny(folder.path())),
               named = make_workload(tiny(folder / "train.bin"));
    EXPECT_EQ(first_tokens(*found), first_tokens(*named));
    for (const auto* task : {&*found, &*named}) {
      EXPECT_NE(task->train_part.source.find("read as uint16 with the 3 characters of meta.pkl"),
                std::string::npos)
          << task->train_part.source;
      const auto tokenizer = text::Tokenizer::parse(task->tokenizer_json);
      EXPECT_EQ(tokenizer.encode("a\né a"), (std::vector<std::int32_t>{1, 0, 2, 1}));
      EXPECT_EQ(tokenizer.decode(first_tokens(*task)), "\naé\naé\na");
    }
    ASSERT_TRUE(found->save(folder / "model"));
    EXPECT_EQ(contents(folder / "model" / "tokenizer.json"), found->tokenizer_json);
    EXPECT_NE(contents(folder / "model" / "config.json").find("\"vocab_size\": 3"),
              std::string::npos);
    Options options = tiny(folder.path());
    options.vocabulary = 64;  // padded, as for tensor cores
    EXPECT_EQ(make_workload(options)->tokenizer_json, found->tokenizer_json);
    options.vocabulary = 2;
    expect_error([&] { make_workload(options); }, {"meta.pkl", "has 3 tokens", "vocabulary is 2"});
  }
}

// A pickle can run code. Opcodes that a vocabulary does not need are refused, and no code runs.
TEST(DataFormats, OtherPicklesAreRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](std::string_view hex, std::initializer_list<const char*> parts) {
    folder.write("meta.pkl", from_hex(hex));
    expect_error([&] { data::read_nanogpt_meta(folder / "meta.pkl"); }, parts);
  };
  // os.system("true") in protocol 4, and the opcodes GLOBAL and REDUCE of protocol 2.
  refused(
      "8004951f000000000000008c05706f736978948c0673797374656d9493948c0474727565948594529"
      "42e",
      {"meta.pkl", "opcode 0x93", "run code"});
  refused("800263706f7369780a73797374656d0a", {"at byte 2", "opcode 0x63"});
  refused("", {"meta.pkl", "1 more bytes"});
  refused("7b7d", {"at byte 0", "protocol 2 to 5"});
  refused("80067d2e", {"protocols 2 to 5", "6"});
  refused("80027d", {"1 more bytes are expected"});
  refused("80022e", {"other than one value"});
  refused("80027d2e2e", {"1 bytes come after its end"});
  refused("80024b03732e", {"before this opcode"});
  refused("8002284b03752e", {"before this opcode"});
  refused("80026805", {"value 5", "not stored"});
  refused("80028c02c3282e", {"not UTF-8"});
  refused("80028dffffffffffffff7f", {"more bytes are expected"});
  refused("80028a09000000000000000001", {"64 bits"});
  // A dictionary that holds itself.
  refused("80027d71008c0a766f6361625f73697a656800732e", {"\"vocab_size\" must be an integer"});
  refused("80027d2e", {"\"vocab_size\" is missing"});
  refused("80027d8c01784b01732e", {"\"vocab_size\", \"itos\" and \"stoi\"", "\"x\""});
  refused("80024b012e", {"the file must be a dictionary"});
  refused("80027d8c0a766f6361625f73697a654b00732e", {"between 1 and", "is 0"});
  // itos and stoi that contradict each other: 'é' is token 1 in one of them.
  std::string wrong = nanogpt_meta(4);
  wrong[wrong.size() - 4] = 1;
  folder.write("meta.pkl", wrong);
  expect_error([&] { data::read_nanogpt_meta(folder / "meta.pkl"); }, {"\"stoi\" gives"});
  // A size alone is a vocabulary without characters.
  folder.write("meta.pkl", from_hex("80027d8c0a766f6361625f73697a654b07732e"));
  const data::NanoGptMeta meta = data::read_nanogpt_meta(folder / "meta.pkl");
  EXPECT_EQ(meta.vocabulary, 7);
  EXPECT_TRUE(meta.characters.empty());
}

// --- JSON lines

TEST(DataFormats, TextsOfJsonLinesAreTheirTexts) {
  const TemporaryFolder folder;
  std::string lines, text;
  for (int i = 0; i < 40; ++i) {
    lines += i % 2 ? "{\"text\": \"caf\\u00e9 one\"}\n"
                   : "{\"prompt\": \"two \", \"answer\": \"three\"}\n";
    text += i % 2 ? "café one\n" : "two three\n";
  }
  const fs::path plain = folder.write("a.txt", text), json = folder.write("a.jsonl", lines);
  write_gzip(folder / "b.jsonl.gz", lines);
  for (const char* tokens : {"bytes", "words"}) {
    Options options = tiny(plain);
    options.tokens = tokens;
    const auto expected = make_workload(options);
    for (const fs::path& file : {json, folder / "b.jsonl.gz"}) {
      options.data = file;
      const auto task = make_workload(options);
      EXPECT_EQ(first_tokens(*task), first_tokens(*expected)) << file << " as " << tokens;
      EXPECT_EQ(task->train_part.tokens, expected->train_part.tokens);
      EXPECT_EQ(task->tokenizer_json, expected->tokenizer_json);
    }
  }
  folder.write("bad.jsonl", "{\"text\": 3}\n");
  expect_error([&] { make_workload(tiny(folder / "bad.jsonl")); }, {"bad.jsonl", "line 1"});
  fs::create_directory(folder / "parts");
  folder.write("parts/train.jsonl", lines), folder.write("parts/val.jsonl", lines);
  EXPECT_NE(make_workload(tiny(folder / "parts"))->test_part.source.find("val.jsonl"),
            std::string::npos);
}

TEST(DataFormats, ATestFileThatIsTooSmallIsToldBeforeTraining) {
  const TemporaryFolder folder;
  folder.write("train.txt", some_text());
  folder.write("test.txt", "abc");
  expect_error([&] { make_workload(tiny(folder.path())); }, {"test.txt", "there are 3"});
}

// --- Labels

TEST(DataFormats, LabelsCountFromZeroOrOne) {
  const TemporaryFolder folder;
  const fs::path ones = folder.write("one.csv", "1,a\n2,b\n"),
                 zeros = folder.write("zero.csv", "0,a\n1,b\n");
  EXPECT_EQ(data::read_labelled_csv(ones, 2)->labels, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(data::read_labelled_csv(zeros, 2, 0)->labels, (std::vector<std::int32_t>{0, 1}));
  expect_error([&] { data::read_labelled_csv(zeros, 2); },
               {"zero.csv", "line 1", "1 to 2", "labels-from 0"});
  const fs::path lines =
      folder.write("one.jsonl", "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"label\":2}\n");
  EXPECT_EQ(data::read_labelled_jsonl(lines, 2, 1)->labels, (std::vector<std::int32_t>{0, 1}));
  expect_error([&] { data::read_labelled_jsonl(lines, 2); }, {"line 2", "labels-from 1"});
  write_gzip(folder / "one.csv.gz", "1,a\n2,b\n");
  EXPECT_EQ(data::read_labelled_csv(folder / "one.csv.gz", 2)->texts.size(), 2u);
}

// --- Images

void write_png(const fs::path& path, std::uint32_t width, std::uint32_t height,
               const std::vector<std::uint8_t>& rgba) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = width, image.height = height, image.format = PNG_FORMAT_RGBA;
  fs::create_directories(path.parent_path());
  ASSERT_NE(png_image_write_to_file(&image, path.c_str(), 0, rgba.data(), 0, nullptr), 0);
}

void write_jpeg(const fs::path& path, unsigned width, unsigned height, std::uint8_t grey) {
  fs::create_directories(path.parent_path());
  FILE* file = std::fopen(path.c_str(), "wb");
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_width = width, info.image_height = height;
  info.input_components = 3, info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  std::vector<std::uint8_t> row(3 * width, grey);
  JSAMPROW rows = row.data();
  while (info.next_scanline < info.image_height) jpeg_write_scanlines(&info, &rows, 1);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

TEST(ImageFolders, PixelsAreScaledByMeans) {
  const TemporaryFolder folder;
  // 4 × 2: columns of 0, 200, 40, 240. Its middle 2 × 2 is 200 and 40.
  std::vector<std::uint8_t> pixels;
  for (int row = 0; row < 2; ++row)
    for (const int grey : {0, 200, 40, 240})
      for (int c = 0; c < 4; ++c) pixels.push_back(static_cast<std::uint8_t>(c == 3 ? 255 : grey));
  write_png(folder / "a/x.png", 4, 2, pixels);
  // Half transparent white is grey on black.
  write_png(folder / "b/y.png", 2, 2, std::vector<std::uint8_t>(16, 128));
  write_jpeg(folder / "b/z.JPG", 9, 5, 77);
  const data::Picture whole = data::read_picture(folder / "a/x.png");
  EXPECT_EQ(whole.height, 2);
  EXPECT_EQ(whole.width, 4);
  EXPECT_EQ(whole.pixels[3], 200);
  const data::ImageFolder read = data::read_image_folder(folder.path(), 2);
  EXPECT_EQ(read.classes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read.images->labels, (std::vector<std::uint8_t>{0, 1, 1}));
  const auto& bytes = read.images->pixels;  // (N, 3, 2, 2)
  EXPECT_EQ(bytes[0], 200);
  EXPECT_EQ(bytes[1], 40);
  EXPECT_EQ(bytes[12], 64);
  EXPECT_NEAR(bytes[24], 77, 1);  // JPEG rounds
  const data::ImageFolder small = data::read_image_folder(folder.path(), 1);
  EXPECT_EQ(small.images->pixels[0], 120);  // the mean of the middle
}

TEST(ImageFolders, TrainAClassifier) {
  const TemporaryFolder folder;
  for (int i = 0; i < 10; ++i)
    for (const char* name : {"dark", "light"})
      write_png(
          folder / name / (std::to_string(i) + ".png"), 3, 4,
          std::vector<std::uint8_t>(48, static_cast<std::uint8_t>((*name == 'd' ? 10 : 240) + i)));
  Options options;
  options.name = "mlp", options.hidden = 4, options.batch = 4, options.data = folder.path();
  options.image_size = 8;
  const auto task = make_workload(options);
  EXPECT_EQ(task->train->size(), 18);  // every tenth of a class is held out
  EXPECT_EQ(task->test->size(), 2);
  EXPECT_EQ(task->train->types(1)[0].shape, (Shape{1, 3, 8, 8}));
  EXPECT_NE(task->train_part.source.find("2 classes (dark, light), scaled to 8 × 8"),
            std::string::npos);
  // Tests judge the first batches: these have all classes, though files come class by class.
  for (int i = 0; i < 40; ++i)
    for (const char* name : {"dark", "light"}) {
      if (*name == 'l' && i % 2 == 1) continue;
      fs::create_directories(folder / "parts/train" / name);
      fs::create_directories(folder / "parts/test" / name);
      const auto pixels = std::vector<std::uint8_t>(16, *name == 'd' ? 10 : 240);
      for (const char* part : {"parts/train", "parts/test"})
        write_png(folder / part / name / (std::to_string(i) + ".png"), 2, 2, pixels);
    }
  Options parted = options;
  parted.data = folder / "parts";
  const std::vector<std::int64_t> first{0, 1, 2, 3, 4, 5};
  const std::vector<std::int32_t> labels =
      make_workload(parted)->test->batch(first, {}).y().to_vector<std::int32_t>();
  EXPECT_EQ(std::count(labels.begin(), labels.end(), 1), 2);  // a third, as of all
  fs::remove_all(folder / "parts");
  fs::remove(folder / "dark/9.png"), fs::remove(folder / "light/9.png");
  expect_error([&] { make_workload(options); }, {"one image in ten", "test/"});
  options.data.reset();
  expect_error([&] { make_workload(options); }, {"image_size", "PNG and JPEG"});
}

// A folder that is already long-tailed loses no items except those of the balanced set.
TEST(ImageFolders, AreReweightedAsTheyAre) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, int>> classes{{"ants", 40}, {"bees", 10}, {"cows", 20}};
  for (const auto& [name, count] : classes) {
    fs::create_directories(folder / name);
    for (int i = 0; i < count; ++i)
      write_png(folder / name / (std::to_string(i) + ".png"), 4, 4,
                std::vector<std::uint8_t>(64, static_cast<std::uint8_t>(100 + i)));
  }
  workloads::MultilevelOptions options;
  options.common.name = "reweight", options.common.data = folder.path();
  options.common.image_size = 4, options.common.batch = 3, options.common.hidden = 4;
  const auto made = workloads::make_multilevel(options);
  // One in ten of each class is for testing; of the rarest, 9 are left: 1 of each is for the
  // balanced set.
  EXPECT_EQ(made->parts.at("test").items, 4 + 1 + 2);
  EXPECT_EQ(made->parts.at("meta").items, 3);
  EXPECT_EQ(made->parts.at("train").items, 36 + 9 + 18 - 3);
  EXPECT_EQ(made->classes(), 3);
  EXPECT_NE(made->parts.at("train").source.find("ants, bees, cows"), std::string::npos);
  EXPECT_FALSE(made->settings.imbalance.has_value());
  EXPECT_EQ(made->settings.meta, 3);
  EXPECT_EQ(made->settings.common.image_size, 4);
  options.imbalance = 4.0;  // now it is made long-tailed: 20 items, then half and a quarter as many
  const auto tail = workloads::make_multilevel(options);
  EXPECT_EQ(tail->parts.at("train").items, 20 + 8 + 5);
  EXPECT_EQ(tail->settings.imbalance, 4.0);
}

TEST(ImageFolders, DamagedFilesAreErrorsThatNameThem) {
  const TemporaryFolder folder;
  write_png(folder / "a/x.png", 4, 4, std::vector<std::uint8_t>(64, 90));
  write_jpeg(folder / "b/y.jpg", 8, 8, 50);
  for (const char* name : {"a/x.png", "b/y.jpg"}) {
    const std::string whole = contents(folder / name);
    for (const std::size_t size : {std::size_t{0}, std::size_t{3}, whole.size() / 2}) {
      folder.write(name, whole.substr(0, size));
      expect_error([&] { data::read_image_folder(folder.path(), 2); }, {name});
    }
    folder.write(name, whole);
  }
  fs::create_directories(folder / "c");
  expect_error([&] { data::read_image_folder(folder.path(), 2); }, {"/c", "none"});
  expect_error([&] { data::read_image_folder(folder / "a", 2); }, {"at least 2 classes"});
}

}  // namespace
}  // namespace ebb::test
