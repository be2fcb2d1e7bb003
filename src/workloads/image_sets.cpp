#include "workloads/image_sets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "ebb/data/image_folder.h"
#include "ebb/error.h"
#include "workloads/random_parts.h"

namespace ebb::workloads {
namespace {

namespace fs = std::filesystem;

data::ImageSetPtr some_images(const data::ImageSet& whole, std::span<const std::int64_t> items) {
  auto some = std::make_shared<data::ImageSet>(
      data::ImageSet{whole.channels, whole.height, whole.width, whole.classes, {}, {}});
  const std::int64_t each = whole.image_bytes();
  some->pixels.reserve(items.size() * static_cast<std::size_t>(each));
  for (const std::int64_t i : items) {
    some->pixels.insert(some->pixels.end(), whole.pixels.begin() + i * each,
                        whole.pixels.begin() + (i + 1) * each);
    some->labels.push_back(whole.labels[static_cast<std::size_t>(i)]);
  }
  return some;
}

// The same images in an order in which every prefix has about the same shares of classes as the
// whole. Folders are read class by class, but a test evaluates only the first batches.
data::ImageSetPtr spread(const data::ImageSet& whole) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(whole.classes)), seen(count);
  for (const std::uint8_t label : whole.labels) ++count[label];
  std::vector<std::pair<double, std::int64_t>> places;  // from 0 to 1 within its class; image
  for (std::int64_t i = 0; i < whole.size(); ++i) {
    const std::uint8_t label = whole.labels[static_cast<std::size_t>(i)];
    places.emplace_back(
        (static_cast<double>(seen[label]++) + 0.5) / static_cast<double>(count[label]), i);
  }
  std::sort(places.begin(), places.end());
  std::vector<std::int64_t> order;
  for (const auto& [place, i] : places) order.push_back(i);
  return some_images(whole, order);
}

// One image in ten of each class is held out: images are in order of class.
void hold_out(const data::ImageSet& whole, const std::string& name, data::ImageSetPtr& train,
              data::ImageSetPtr& test) {
  std::vector<std::int64_t> seen(static_cast<std::size_t>(whole.classes)), some, rest;
  for (std::int64_t i = 0; i < whole.size(); ++i)
    (++seen[whole.labels[static_cast<std::size_t>(i)]] % 10 == 0 ? rest : some).push_back(i);
  if (rest.empty())
    throw ValueError(fmt::format(
        "{}: one image in ten of each class is held out for testing, but no class has ten; a "
        "folder test/ beside train/ can hold the images to test with",
        name));
  train = some_images(whole, some), test = some_images(whole, rest);
}

// A folder of PNG and JPEG files, with a folder for each class.
ImageSets pictures(const fs::path& folder, std::int64_t size) {
  const data::ImageFolders parts = data::image_folders(folder);
  const data::ImageFolder whole = data::read_image_folder(parts.train, size);
  constexpr std::size_t few = 12;  // names that a reader wants to see
  const std::string names = whole.classes.size() <= few
                                ? fmt::format(" ({})", fmt::join(whole.classes, ", "))
                                : std::string();
  const std::string read_as =
      fmt::format("{} classes{}, scaled to {} × {}", whole.images->classes, names, size, size);
  ImageSets sets;
  sets.train = whole.images, sets.scaled_to = size;
  sets.padding = std::min<std::int64_t>(4, size / 8), sets.flips = true;
  if (parts.test.empty()) {
    hold_out(*whole.images, folder.string(), sets.train, sets.test);
    sets.train_source =
        fmt::format("{}, {}, without every tenth image", parts.train.string(), read_as);
    sets.test_source = fmt::format("{}, every tenth image of a class", folder.string());
  } else {
    sets.test = data::read_image_folder(parts.test, size, &whole).images;
    sets.train_source = fmt::format("{}, {}", parts.train.string(), read_as);
    sets.test_source = parts.test.string();
  }
  sets.test = spread(*sets.test);
  return sets;
}

}  // namespace

data::ImageOptions ImageSets::plain() const {
  return {.normalise = data::channel_statistics(*train)};
}

data::ImageOptions ImageSets::varied() const {
  data::ImageOptions options = plain();
  options.crop_padding = padding, options.flip = flips;
  return options;
}

ImageSets read_image_sets(const fs::path& folder, std::optional<std::int64_t> image_size) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw FileError(fmt::format(
        "{}: a folder of images is expected: CIFAR-10's binary files, MNIST's idx files, or PNG "
        "and JPEG files with a folder for each class",
        folder.string()));
  const auto has = [&](const char* name) {
    return fs::exists(folder / name) || fs::exists(folder / (std::string(name) + ".gz"));
  };
  const bool cifar = has("test_batch.bin") || has("data_batch_1.bin");
  const bool has_train = has(cifar ? "data_batch_1.bin" : "train-images-idx3-ubyte"),
             has_test = has(cifar ? "test_batch.bin" : "t10k-images-idx3-ubyte");
  if (!has_train && !has_test) {
    if (data::is_image_folder(folder)) return pictures(folder, image_size.value_or(32));
    throw FileError(fmt::format(
        "{}: no images are there: CIFAR-10's data_batch_1.bin, MNIST's train-images-idx3-ubyte, or "
        "PNG and JPEG files with a folder for each class are expected",
        folder.string()));
  }
  const auto read = [&](data::Split split) {
    return cifar ? data::read_cifar10(folder, split) : data::read_mnist(folder, split);
  };
  ImageSets sets;
  sets.flips = cifar;
  if (has_train && has_test) {
    sets.train = read(data::Split::train), sets.test = read(data::Split::test);
    sets.train_source = fmt::format("{}, the training set", folder.string());
    sets.test_source = fmt::format("{}, the test set", folder.string());
    return sets;
  }
  const data::ImageSetPtr whole = read(has_train ? data::Split::train : data::Split::test);
  const std::string name =
      fmt::format("{}, the {} set", folder.string(), has_train ? "training" : "test");
  const Parts parts =
      random_parts(std::vector<std::int32_t>(whole->labels.begin(), whole->labels.end()), name);
  sets.train = some_images(*whole, parts.train), sets.test = some_images(*whole, parts.test);
  sets.train_source = train_source(parts, name, "images");
  sets.test_source = test_source(parts, name, "images");
  return sets;
}

}  // namespace ebb::workloads
