#include "ebb/data/images.h"

#include <algorithm>
#include <cmath>

#include "data/draws.h"
#include "data/items.h"

namespace ebb::data {

ChannelStatistics channel_statistics(const ImageSet& images) {
  const std::int64_t area = images.height * images.width;
  ChannelStatistics result;
  for (std::int64_t c = 0; c < images.channels; ++c) {
    std::int64_t sum = 0, squares = 0;  // exact
    for (std::int64_t n = 0; n < images.size(); ++n) {
      const std::uint8_t* at = images.pixels.data() + n * images.image_bytes() + c * area;
      for (std::int64_t i = 0; i < area; ++i) sum += at[i], squares += at[i] * at[i];
    }
    const double count = static_cast<double>(images.size() * area);
    const double mean = static_cast<double>(sum) / count;
    const double variance = static_cast<double>(squares) / count - mean * mean;
    result.mean.push_back(mean / 255);
    result.deviation.push_back(std::sqrt(std::max(variance, 0.0)) / 255);
  }
  return result;
}

ImageDataset::ImageDataset(ImageSetPtr images, ImageOptions options)
    : images_(std::move(images)), options_(std::move(options)) {
  constexpr std::string_view who = "ImageDataset";
  require(images_ != nullptr && images_->size() > 0, who, "images are expected, but none came");
  const ImageSet& set = *images_;
  require(static_cast<std::int64_t>(set.pixels.size()) == set.size() * set.image_bytes(), who,
          fmt::format("{} images of {} bytes are expected, but {} bytes came", set.size(),
                      set.image_bytes(), set.pixels.size()));
  require(options_.crop_padding >= 0 && options_.crop_padding <= std::min(set.height, set.width),
          who,
          fmt::format("a crop may move images by 0 to their size in pixels, but {} came",
                      options_.crop_padding));
  auto& [mean, deviation] = options_.normalise;
  const auto channels = static_cast<std::size_t>(set.channels);
  if (mean.empty() && deviation.empty()) mean.assign(channels, 0), deviation.assign(channels, 1);
  require(mean.size() == channels && deviation.size() == channels, who,
          fmt::format("a mean and a deviation for each of {} channels are expected, but {} and {} "
                      "came",
                      channels, mean.size(), deviation.size()));
  for (std::size_t c = 0; c < channels; ++c) {
    require(std::isfinite(mean[c]) && std::isfinite(deviation[c]) && deviation[c] > 0, who,
            fmt::format("channel {} has mean {} and deviation {}: all pixels alike, or no numbers",
                        c, mean[c], deviation[c]));
    for (int pixel = 0; pixel < 256; ++pixel)
      values_.push_back(static_cast<float>((pixel / 255.0 - mean[c]) / deviation[c]));
  }
}

std::vector<TensorType> ImageDataset::types(std::int64_t batch) const {
  return {{{batch, images_->channels, images_->height, images_->width}, f32}, {{batch}, i32}};
}

// One image, shifted by (down, right) and optionally mirrored; pixels from outside are black.
void ImageDataset::place(std::int64_t item, RandomState augmentation, std::span<float> out) const {
  const std::int64_t height = images_->height, width = images_->width;
  std::int64_t down = 0, right = 0;
  bool mirror = false;
  if (options_.crop_padding > 0 || options_.flip) {
    Draws draws(augmentation, static_cast<std::uint64_t>(item));
    const std::int64_t padding = options_.crop_padding;
    const auto choices = static_cast<std::uint64_t>(2 * padding + 1);
    down = static_cast<std::int64_t>(draws.below(choices)) - padding;
    right = static_cast<std::int64_t>(draws.below(choices)) - padding;
    mirror = options_.flip && (draws.bits() & 1) != 0;
  }
  const std::int64_t left_edge = std::max<std::int64_t>(0, right),
                     right_edge = std::min(width, width + right);
  const std::uint8_t* image = images_->pixels.data() + item * images_->image_bytes();
  float* to = out.data();
  for (std::int64_t c = 0; c < images_->channels; ++c) {
    const float* value = values_.data() + 256 * c;
    for (std::int64_t y = 0; y < height; ++y, to += width) {
      const std::int64_t from_y = y - down;
      if (from_y < 0 || from_y >= height) {
        std::fill_n(to, width, value[0]);
        continue;
      }
      const std::uint8_t* row = image + (c * height + from_y) * width;
      std::fill(to, to + left_edge, value[0]);
      for (std::int64_t x = left_edge; x < right_edge; ++x) to[x] = value[row[x - right]];
      std::fill(to + right_edge, to + width, value[0]);
      if (mirror) std::reverse(to, to + width);
    }
  }
}

Batch ImageDataset::batch(std::span<const std::int64_t> items, RandomState augmentation) const {
  check_items("ImageDataset", items, size());
  const auto each = static_cast<std::size_t>(images_->image_bytes());  // floats now
  std::vector<float> x(items.size() * each);
  std::vector<std::int32_t> y(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    place(items[i], augmentation, std::span(x).subspan(i * each, each));
    y[i] = images_->labels[static_cast<std::size_t>(items[i])];
  }
  const std::vector<TensorType> type = types(static_cast<std::int64_t>(items.size()));
  return {{Tensor::from(x, type[0].shape), Tensor::from(y, type[1].shape)}};
}

LongTail long_tail(const ImageSet& images, const LongTailOptions& options) {
  return long_tail(images.labels, images.classes, options);
}

LongTail long_tail(std::span<const std::uint8_t> labels, std::int64_t classes,
                   const LongTailOptions& options) {
  constexpr std::string_view who = "long_tail";
  const auto items = static_cast<std::int64_t>(labels.size());
  require(classes > 0, who, "images with classes are expected");
  require(std::isfinite(options.imbalance) && options.imbalance >= 1, who,
          fmt::format("an imbalance of at least 1 is expected, but {} came", options.imbalance));
  require(options.meta >= 0 && options.meta % classes == 0, who,
          fmt::format("the balanced set must divide evenly among {} classes, but {} items came",
                      classes, options.meta));
  std::vector<std::vector<std::int64_t>> by_class(static_cast<std::size_t>(classes));
  for (std::int64_t i = 0; i < items; ++i) {
    const std::uint8_t label = labels[static_cast<std::size_t>(i)];
    require(label < classes, who,
            fmt::format("item {} has label {}, but there are {} classes", i, label, classes));
    by_class[label].push_back(i);
  }
  const std::int64_t meta_each = options.meta / classes;
  const std::int64_t average = (items - options.meta) / classes;
  LongTail result;
  for (std::int64_t c = 0; c < classes; ++c) {
    std::vector<std::int64_t>& mine = by_class[static_cast<std::size_t>(c)];
    const auto have = static_cast<std::int64_t>(mine.size());
    require(
        have >= meta_each, who,
        fmt::format("class {} has {} items, but the balanced set needs {}", c, have, meta_each));
    Draws draws({options.seed, static_cast<std::uint64_t>(c)}, 0x6C6F6E67ull);
    for (std::size_t left = mine.size(); left > 1; --left)
      std::swap(mine[left - 1], mine[draws.below(left)]);
    const double share =
        classes == 1 ? 0.0 : static_cast<double>(c) / static_cast<double>(classes - 1);
    const auto wanted = static_cast<std::int64_t>(static_cast<double>(average) /
                                                  std::pow(options.imbalance, share));
    const std::int64_t keep = std::min(wanted, have - meta_each);
    result.meta.insert(result.meta.end(), mine.begin(), mine.begin() + meta_each);
    result.train.insert(result.train.end(), mine.begin() + meta_each,
                        mine.begin() + meta_each + keep);
  }
  return result;
}

}  // namespace ebb::data
