// Readers of image files: CIFAR-10's records and MNIST's idx.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/file.h"
#include "data/gzip.h"
#include "data/items.h"
#include "ebb/data/images.h"

namespace ebb::data {
namespace {

constexpr std::int64_t cifar_image = 3 * 32 * 32, cifar_record = 1 + cifar_image;

std::vector<std::filesystem::path> cifar_files(const std::filesystem::path& folder, Split split) {
  if (split == Split::test) return {folder / "test_batch.bin"};
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("data_batch_") && name.ends_with(".bin")) files.push_back(at->path());
  }
  if (error) fail_file(folder, "cannot list the folder: {}", error.message());
  if (files.empty()) fail_file(folder, "files data_batch_*.bin are expected, but there are none");
  std::sort(files.begin(), files.end());
  return files;
}

template <std::size_t n>
std::array<std::uint32_t, n> big_endian(GzipFile& file) {
  std::array<std::byte, 4 * n> raw;
  file.read(raw);
  std::array<std::uint32_t, n> words{};
  for (std::size_t i = 0; i < raw.size(); ++i)
    words[i / 4] = words[i / 4] << 8 | std::to_integer<std::uint32_t>(raw[i]);
  return words;
}

// The sizes after an idx file's magic number, which says "bytes" and how many sizes there are.
// Their product is checked against what the file can hold, so it is safe to allocate.
template <std::size_t rank>
std::array<std::uint32_t, rank> idx_sizes(GzipFile& file) {
  constexpr std::uint32_t expected = 0x0800 + rank;
  const std::uint32_t magic = big_endian<1>(file)[0];
  if (magic != expected)
    fail_file(file.path(),
              "the magic number 0x{:08x} of an idx file of rank {} is expected, but "
              "0x{:08x} came",
              expected, rank, magic);
  const auto sizes = big_endian<rank>(file);
  std::int64_t bytes = 1;
  bool fits = true;
  for (std::uint32_t size : sizes)
    fits =
        fits && size > 0 && !__builtin_mul_overflow(bytes, static_cast<std::int64_t>(size), &bytes);
  if (!fits || bytes > file.most_bytes())
    fail_file(file.path(), "positive sizes that the file has bytes for are expected, but ({}) came",
              fmt::join(sizes, ", "));
  return sizes;
}

// Memory grows with the data read: a compressed file may claim a thousand times its own size.
void read_all(GzipFile& file, std::vector<std::uint8_t>& out, std::int64_t bytes) {
  constexpr std::size_t piece = 1 << 20;
  const auto all = static_cast<std::size_t>(bytes);
  out.reserve(all);
  for (std::size_t at = 0; at < all; at = out.size()) {
    out.resize(std::min(all, at + piece));
    file.read(std::as_writable_bytes(std::span(out)).subspan(at));
  }
  file.expect_end();
}

}  // namespace

ImageSetPtr read_cifar10(const std::filesystem::path& folder, Split split) {
  const std::vector<std::filesystem::path> files = cifar_files(folder, split);
  auto set = std::make_shared<ImageSet>();
  set->channels = 3;
  set->height = set->width = 32;
  set->classes = 10;
  std::vector<std::byte> record(cifar_record);
  for (const std::filesystem::path& path : files) {
    const File file(path);
    if (file.size() == 0 || file.size() % cifar_record != 0)
      fail_file(path, "records of {} bytes are expected, but the file has {} bytes", cifar_record,
                file.size());
    const std::size_t count = static_cast<std::size_t>(file.size() / cifar_record);
    set->pixels.reserve(set->pixels.size() + count * cifar_image);
    set->labels.reserve(set->labels.size() + count);
    for (std::int64_t at = 0; at < file.size(); at += cifar_record) {
      file.read(at, record);
      const auto label = std::to_integer<std::uint8_t>(record[0]);
      if (label >= set->classes)
        fail_file(path, "offset {}: a label of 0 to {} is expected, but {} came", at,
                  set->classes - 1, label);
      set->labels.push_back(label);
      const auto* pixels = reinterpret_cast<const std::uint8_t*>(record.data()) + 1;
      set->pixels.insert(set->pixels.end(), pixels, pixels + cifar_image);
    }
  }
  return set;
}

ImageSetPtr read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                     std::int64_t classes) {
  require(classes > 0 && classes <= 256, "read_idx",
          fmt::format("1 to 256 classes are expected, but {} came", classes));
  auto set = std::make_shared<ImageSet>();
  set->classes = classes;
  set->channels = 1;
  GzipFile image_file(images), label_file(labels);
  const auto [count, height, width] = idx_sizes<3>(image_file);
  const auto [label_count] = idx_sizes<1>(label_file);
  if (label_count != count)
    fail_file(labels, "{} labels are expected, as {} has so many images, but {} came", count,
              images.string(), label_count);
  set->height = height;
  set->width = width;
  read_all(label_file, set->labels, count);
  const auto wrong = std::find_if(set->labels.begin(), set->labels.end(),
                                  [&](std::uint8_t label) { return label >= classes; });
  if (wrong != set->labels.end())
    fail_file(labels, "offset {}: a label of 0 to {} is expected, but {} came",
              8 + (wrong - set->labels.begin()), classes - 1, *wrong);
  read_all(image_file, set->pixels, count * set->image_bytes());
  return set;
}

ImageSetPtr read_mnist(const std::filesystem::path& folder, Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const auto find = [&](const char* rest) {
    const std::filesystem::path plain = folder / (prefix + rest);
    std::filesystem::path packed = plain;
    packed += ".gz";
    std::error_code error;
    if (!std::filesystem::exists(plain, error) && std::filesystem::exists(packed, error))
      return packed;
    return plain;
  };
  return read_idx(find("-images-idx3-ubyte"), find("-labels-idx1-ubyte"), 10);
}

}  // namespace ebb::data
