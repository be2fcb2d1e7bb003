// Files as people have them: compressed text, nanoGPT's tokens, folders of images, labels that
// count from 0 or 1, and vocabularies that are saved with the model.
#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include <fstream>
#include <functional>

#include "ebb/data/image_folder.h"
#include "ebb/data/labelled_text.h"
#include "ebb/data/text.h"
#include "ebb/error.h"
#include "ebb/text/tokenizer.h"
#include "ebb/workloads/workload.h"
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
  // What was said is not guessed.
  options.data = folder / "train.bin", options.tokens = "int32";
  expect_error([&] { first_tokens(*make_workload(options)); }, {"train.bin", "[0, 1000)"});
  options.tokens = "words";
  expect_error([&] { make_workload(options); }, {"train.bin", "uint16, int32 or bytes"});
  options.tokens.reset(), options.vocabulary = 20;
  expect_error([&] { make_workload(options); }, {"train.bin", "vocabulary of 20"});
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
  EXPECT_NE(task->train_part.source.find("2 classes, scaled to 8 × 8"), std::string::npos);
  fs::remove(folder / "dark/9.png"), fs::remove(folder / "light/9.png");
  expect_error([&] { make_workload(options); }, {"one image in ten", "test/"});
  options.data.reset();
  expect_error([&] { make_workload(options); }, {"image_size", "PNG and JPEG"});
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
