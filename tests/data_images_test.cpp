// Image files, normalising, augmenting, and long-tailed subsets.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <set>

#include "ebb/data/images.h"
#include "support/op_check.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

using namespace data;
using namespace std::string_literals;

std::string cifar_record(char label, char first) {
  std::string record(3073, '\x10');
  record[0] = label;
  record[1] = first;
  return record;
}

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Two images of 2 × 3 pixels counting up from 0, labelled 4 and 9.
const std::string idx_images = "\0\0\x08\x03"s + big_endian(2) + big_endian(2) + big_endian(3) +
                               "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b"s;
const std::string idx_labels = "\0\0\x08\x01"s + big_endian(2) + "\x04\x09"s;

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(bytes.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<unsigned>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

ImageSetPtr counting_images(std::int64_t count, std::int64_t channels, std::int64_t size) {
  auto set = std::make_shared<ImageSet>();
  set->channels = channels;
  set->height = set->width = size;
  set->classes = 10;
  for (std::int64_t i = 0; i < count; ++i) set->labels.push_back(static_cast<std::uint8_t>(i % 10));
  for (std::int64_t i = 0; i < count * channels * size * size; ++i)
    set->pixels.push_back(static_cast<std::uint8_t>(1 + i % 255));
  return set;
}

TEST(DataImages, ReadsCifarFoldersOfAnySize) {
  const TemporaryFolder folder;
  folder.write("data_batch_2.bin", cifar_record(9, 'c'));
  folder.write("data_batch_1.bin", cifar_record(0, 'a') + cifar_record(3, 'b'));
  folder.write("test_batch.bin", cifar_record(5, 'd'));
  const ImageSetPtr train = read_cifar10(folder.path(), Split::train);
  EXPECT_EQ(train->labels, (std::vector<std::uint8_t>{0, 3, 9}));
  EXPECT_EQ(train->pixels[0], 'a');
  EXPECT_EQ(train->pixels[3072], 'b');
  EXPECT_EQ(train->pixels[2 * 3072], 'c');
  EXPECT_EQ(read_cifar10(folder.path(), Split::test)->size(), 1);

  folder.write("data_batch_3.bin", cifar_record(10, 'x'));
  expect_error([&] { read_cifar10(folder.path(), Split::train); },
               {"data_batch_3.bin", "offset 0", "0 to 9", "10"});
  folder.write("data_batch_3.bin", cifar_record(1, 'x').substr(1));
  expect_error([&] { read_cifar10(folder.path(), Split::train); },
               {"data_batch_3.bin", "3073", "3072"});
  folder.write("test_batch.bin", "");
  expect_error([&] { read_cifar10(folder.path(), Split::test); }, {"test_batch.bin", "0 bytes"});
  const TemporaryFolder empty;
  expect_error([&] { read_cifar10(empty.path(), Split::train); }, {"data_batch_*.bin"});
  expect_error([&] { read_cifar10(empty.path() / "none", Split::train); }, {"none", "list"});
}

TEST(DataImages, ReadsIdxPlainAndPacked) {
  const TemporaryFolder folder;
  folder.write("t10k-images-idx3-ubyte", idx_images);
  folder.write("t10k-labels-idx1-ubyte.gz", gzip(idx_labels));
  const ImageSetPtr set = read_mnist(folder.path(), Split::test);
  EXPECT_EQ(set->labels, (std::vector<std::uint8_t>{4, 9}));
  EXPECT_EQ(set->height, 2);
  EXPECT_EQ(set->width, 3);
  EXPECT_EQ(set->pixels.back(), 11);
  expect_error([&] { read_mnist(folder.path(), Split::train); }, {"train-images", "cannot open"});
}

TEST(DataImages, NamesWhatIsWrongWithIdx) {
  const TemporaryFolder folder;
  const auto images = folder.write("i", idx_images), labels = folder.write("l", idx_labels);
  const auto images_error = [&](const std::string& bytes, std::vector<std::string> parts) {
    parts.push_back("bad");
    const auto bad = folder.write("bad", bytes);
    expect_error([&] { read_idx(bad, labels, 10); }, parts);
  };
  const auto huge = big_endian(0xffffffff);
  images_error("", {"4 more bytes"});
  std::string wrong_magic = idx_images;
  wrong_magic[0] = '\x7f';
  images_error(wrong_magic, {"0x00000803", "0x7f000803"});
  images_error(idx_labels, {"0x00000803", "0x00000801"});
  images_error(idx_images.substr(0, 10), {"offset"});
  images_error("\0\0\x08\x03"s + huge + huge + huge, {"4294967295"});
  images_error("\0\0\x08\x03"s + big_endian(2) + big_endian(0) + big_endian(3), {"(2, 0, 3)"});
  images_error(idx_images.substr(0, idx_images.size() - 1), {"1 more bytes"});
  images_error(idx_images + "x", {"more follow"});
  // A few bytes that announce 4 GB: refused before anything is allocated.
  images_error(gzip("\0\0\x08\x03"s + big_endian(2) + big_endian(0xffff) + big_endian(0xffff)),
               {"65535"});
  const std::string packed = gzip(idx_images);
  for (std::size_t cut : {3ul, 12ul, packed.size() - 9, packed.size() - 1})
    images_error(packed.substr(0, cut), {});
  std::string damaged = packed;
  damaged[damaged.size() - 6] ^= 1;  // the checksum
  images_error(damaged, {"damaged"});

  const auto one = folder.write("one", "\0\0\x08\x01"s + big_endian(1) + "\x04"s);
  expect_error([&] { read_idx(images, one, 10); }, {"one", "2 labels", "1"});
  expect_error([&] { read_idx(images, labels, 9); }, {"offset 9", "0 to 8", "9"});
  expect_error([&] { read_idx(images, labels, 257); }, {"257"});
}

TEST(DataImages, NormalisesByChannel) {
  const ImageSetPtr set = counting_images(4, 3, 8);
  const ChannelStatistics statistics = channel_statistics(*set);
  const ImageDataset dataset(set, {.normalise = statistics});
  const std::int64_t items[] = {0, 1, 2, 3};
  const Batch batch = dataset.batch(items, {});
  EXPECT_EQ(batch.types(), dataset.types(4));
  EXPECT_EQ(batch.y().to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, 1, 2, 3}));
  const std::vector<float> x = batch.x().to_vector<float>();
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (std::size_t n = 0; n < 4; ++n)
      for (std::size_t i = 0; i < 64; ++i) {
        const double value = x[(n * 3 + c) * 64 + i];
        sum += value;
        squares += value * value;
      }
    EXPECT_NEAR(sum / 256, 0, 1e-6);  // float32 rounding of values near 1
    EXPECT_NEAR(squares / 256, 1, 1e-6);
  }
  const std::vector<float> plain = ImageDataset(set).batch(items, {}).x().to_vector<float>();
  EXPECT_EQ(plain[0], 1.0f / 255);
}

TEST(DataImages, AugmentsByStateAndItemAlone) {
  const ImageSetPtr set = counting_images(64, 1, 8);
  const ImageDataset dataset(set, {.normalise = {}, .crop_padding = 4, .flip = true});
  const auto image = [&](std::vector<std::int64_t> items, std::size_t row, std::uint64_t step) {
    const std::vector<float> all = dataset.batch(items, {1, step}).x().to_vector<float>();
    return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(row * 64),
                              all.begin() + static_cast<std::ptrdiff_t>(row * 64 + 64));
  };
  EXPECT_EQ(image({3, 5}, 1, 0), image({5, 9, 2}, 0, 0));
  // Every result is the image moved by at most four pixels and perhaps mirrored; over many epochs
  // all moves occur (81 · 2, of which 2000 draws miss one with probability below 1e-3).
  std::set<std::tuple<int, int, bool>> seen;
  for (std::uint64_t step = 0; step < 2000; ++step) {
    const std::vector<float> got = image({0}, 0, step);
    bool found = false;
    for (int down = -4; down <= 4; ++down)
      for (int right = -4; right <= 4; ++right)
        for (bool mirror : {false, true}) {
          bool same = true;
          for (int y = 0; y < 8 && same; ++y)
            for (int x = 0; x < 8 && same; ++x) {
              const int fy = y - down, fx = (mirror ? 7 - x : x) - right;
              const bool inside = fy >= 0 && fy < 8 && fx >= 0 && fx < 8;
              const int pixel = inside ? 1 + fy * 8 + fx : 0;
              same = got[static_cast<std::size_t>(y * 8 + x)] == static_cast<float>(pixel / 255.0);
            }
          if (same) seen.insert({down, right, mirror}), found = true;
        }
    ASSERT_TRUE(found) << "step " << step;
  }
  EXPECT_EQ(seen.size(), 162u);
}

TEST(DataImages, LongTailsAsAsked) {
  const ImageSetPtr set = counting_images(5000, 1, 1);
  const LongTail tail = long_tail(*set, {.imbalance = 100, .meta = 100, .seed = 3});
  std::vector<std::int64_t> train(10), meta(10);
  std::set<std::int64_t> all;
  for (std::int64_t i : tail.train)
    ++train[set->labels[static_cast<std::size_t>(i)]], all.insert(i);
  for (std::int64_t i : tail.meta) ++meta[set->labels[static_cast<std::size_t>(i)]], all.insert(i);
  EXPECT_EQ(all.size(), tail.train.size() + tail.meta.size());
  for (std::int64_t c = 0; c < 10; ++c) {
    EXPECT_EQ(meta[static_cast<std::size_t>(c)], 10);
    EXPECT_EQ(train[static_cast<std::size_t>(c)],
              static_cast<std::int64_t>(490 / std::pow(100.0, static_cast<double>(c) / 9)));
  }
  EXPECT_EQ(long_tail(*set, {.imbalance = 100, .meta = 100, .seed = 3}).train, tail.train);
  EXPECT_NE(long_tail(*set, {.imbalance = 100, .meta = 100, .seed = 4}).train, tail.train);
  expect_error([&] { long_tail(*set, {.imbalance = 0.5}); }, {"at least 1", "0.5"});
  expect_error([&] { long_tail(*set, {.meta = 7}); }, {"10 classes", "7"});
  expect_error([&] { long_tail(*set, {.meta = 6000}); }, {"class 0", "500", "600"});
}

TEST(DataImages, RefusesOptionsThatCannotBe) {
  const ImageSetPtr set = counting_images(1, 3, 4);
  expect_error([&] { ImageDataset(nullptr); }, {"images"});
  expect_error([&] { ImageDataset(set, {.normalise = {{0.5}, {0.5}}}); }, {"3 channels", "1"});
  expect_error([&] { ImageDataset(set, {.normalise = {{0, 0, 0}, {1, 0, 1}}}); }, {"channel 1"});
  expect_error([&] { ImageDataset(set, {.normalise = {}, .crop_padding = 5}); }, {"5"});
}

}  // namespace
}  // namespace ebb::test
