// Labelled images from files: CIFAR-10, MNIST, or a folder of PNG and JPEG files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ebb/data/images.h"

namespace ebb::workloads {

struct ImageSets {
  data::ImageSetPtr train, test;
  std::string train_source, test_source;  // where the parts are from, for people
  std::optional<std::int64_t> scaled_to;  // pixels; of a folder of image files
  std::int64_t padding = 4;               // of crops, where images are varied
  bool flips = false;                     // whether a mirrored image still belongs to its class

  data::ImageOptions plain() const;   // normalised by the training set
  data::ImageOptions varied() const;  // also cropped and flipped at random
};

// Reads a folder. If only the training set or only the test set is there (MNIST's training files
// are often left out), some of its images are held out for testing (random_parts); in a folder of
// image files without test/, one in ten of each class.
ImageSets read_image_sets(const std::filesystem::path& folder,
                          std::optional<std::int64_t> image_size);

}  // namespace ebb::workloads
