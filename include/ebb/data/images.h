// Labelled images: kept as bytes, given as normalised float32 batches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

struct ImageSet {
  std::int64_t channels = 0, height = 0, width = 0, classes = 0;
  std::vector<std::uint8_t> pixels;  // (N, C, H, W)
  std::vector<std::uint8_t> labels;  // (N)

  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t image_bytes() const { return channels * height * width; }
};

using ImageSetPtr = std::shared_ptr<const ImageSet>;

// CIFAR-10's binary version: every data_batch_*.bin of a folder in order of name, or
// test_batch.bin. Files may hold any number of records.
ImageSetPtr read_cifar10(const std::filesystem::path& folder, Split split);

// An idx file of images (N, H, W) and one of labels (N), plain or gzip.
ImageSetPtr read_idx(const std::filesystem::path& images, const std::filesystem::path& labels,
                     std::int64_t classes);

// MNIST's files under their published names, plain or with ".gz".
ImageSetPtr read_mnist(const std::filesystem::path& folder, Split split);

// Mean and deviation of each channel, for pixels in [0, 1].
struct ChannelStatistics {
  std::vector<double> mean, deviation;
};
ChannelStatistics channel_statistics(const ImageSet& images);

struct ImageOptions {
  ChannelStatistics normalise;  // empty: no change, pixels in [0, 1]
  std::int64_t crop_padding =
      0;              // random shift by up to this many pixels, filled with black (CIFAR: 4)
  bool flip = false;  // mirrored with probability 1/2
};

// x float32 (N, C, H, W), y int32 (N).
class ImageDataset : public Dataset {
 public:
  explicit ImageDataset(ImageSetPtr images, ImageOptions options = {});

  std::int64_t size() const override { return images_->size(); }
  std::vector<TensorType> types(std::int64_t batch) const override;
  Batch batch(std::span<const std::int64_t> items, RandomState augmentation) const override;

 private:
  void place(std::int64_t item, RandomState augmentation, std::span<float> out) const;

  ImageSetPtr images_;
  ImageOptions options_;
  std::vector<float> values_;  // (C, 256): normalised value of a pixel
};

struct LongTailOptions {
  double imbalance = 100;    // μ: how many times fewer items the rarest class has
  std::int64_t meta = 1000;  // items of the balanced set, divided evenly among classes
  std::uint64_t seed = 0;
};

// Items for two `Subset`s that share none.
struct LongTail {
  std::vector<std::int64_t> train, meta;
};

// First removes a balanced set. With n the mean number of items left per class, class c of C then
// keeps n·μ^(-c/(C-1)) items, rounded down and chosen at random.
LongTail long_tail(const ImageSet& images, const LongTailOptions& options = {});
// The same from labels alone.
LongTail long_tail(std::span<const std::uint8_t> labels, std::int64_t classes,
                   const LongTailOptions& options = {});

}  // namespace ebb::data
