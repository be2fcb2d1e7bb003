// Images from a folder with a folder for each class: PNG and JPEG files of any size.
#pragma once

#include <cstdint>
#include <filesystem>

#include "ebb/data/images.h"

namespace ebb::data {

// Whether a folder holds folders with .png, .jpg or .jpeg files, at most one level below it (as in
// train/cats/1.png). Names that begin with a dot do not count.
bool is_image_folder(const std::filesystem::path& folder);

struct ImageFolders {
  std::filesystem::path train;
  std::filesystem::path test;  // empty: there is none, and some images are to be held out
};
// The parts of a folder: its train/, and its test/, val/ or valid/ (the first that exists). A
// folder without train/ is itself the training part.
ImageFolders image_folders(const std::filesystem::path& folder);

// Every image of a folder as RGB, `size` × `size`. An image is scaled so that its shorter side has
// `size` pixels, each the mean of the area it covers (bilinear where it is enlarged), and the
// middle of the longer side is kept. Transparent pixels are blended with black.
//
// Classes are the names of the folders, in alphabetical order. With `like`, they are the classes of
// that other part, and a folder that it lacks is an error. Images are in order of class and name.
// At most 256 classes. A file that is not an image, or an image of more than 2^26 pixels, is an
// error that names the file.
struct ImageFolder {
  ImageSetPtr images;
  std::vector<std::string> classes;
};
ImageFolder read_image_folder(const std::filesystem::path& folder, std::int64_t size,
                              const ImageFolder* like = nullptr);

// One image as (H, W, 3) bytes.
struct Picture {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
};
Picture read_picture(const std::filesystem::path& file);

}  // namespace ebb::data
