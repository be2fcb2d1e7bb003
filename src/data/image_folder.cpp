#include "ebb/data/image_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "data/file.h"

namespace ebb::data {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
  std::string end = path.extension().string();
  std::transform(end.begin(), end.end(), end.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return end == ".png" || end == ".jpg" || end == ".jpeg";
}

enum class Kind : bool { folders, images };

// The sorted entries, without those whose names begin with a dot.
std::vector<fs::path> entries(const fs::path& folder, Kind kind) {
  std::vector<fs::path> found;
  std::error_code error, ignored;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with('.')) continue;
    const bool wanted = kind == Kind::folders
                            ? at->is_directory(ignored)
                            : at->is_regular_file(ignored) && is_image(at->path());
    if (wanted) found.push_back(at->path());
  }
  if (error) fail_file(folder, "cannot list the folder: {}", error.message());
  std::sort(found.begin(), found.end());
  return found;
}

bool has_classes(const fs::path& folder) {
  const std::vector<fs::path> folders = entries(folder, Kind::folders);
  return std::any_of(folders.begin(), folders.end(),
                     [](const fs::path& one) { return !entries(one, Kind::images).empty(); });
}

// The weights of source pixels in each of `to` pixels along one axis, which show `length` source
// pixels starting at `begin`. The filter is a triangle as wide as the larger of a source pixel and
// a result pixel.
struct Taps {
  std::int64_t first;
  std::vector<double> weights;
};
std::vector<Taps> taps_of(std::int64_t from, double begin, double length, std::int64_t to) {
  const double scale = length / static_cast<double>(to), radius = std::max(scale, 1.0);
  std::vector<Taps> all;
  for (std::int64_t i = 0; i < to; ++i) {
    const double centre = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto low = std::clamp<std::int64_t>(
                   static_cast<std::int64_t>(std::ceil(centre - radius - 0.5)), 0, from - 1),
               high = std::clamp<std::int64_t>(
                   static_cast<std::int64_t>(std::floor(centre + radius - 0.5)), low, from - 1);
    Taps taps{low, {}};
    double sum = 0.0;
    for (std::int64_t x = low; x <= high; ++x) {
      const double away = std::abs(static_cast<double>(x) + 0.5 - centre) / radius;
      taps.weights.push_back(std::max(1.0 - away, 1e-9));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
    all.push_back(std::move(taps));
  }
  return all;
}

// Scaled to `size` × `size` as (3, size, size), at the end of `out`.
void append_scaled(const Picture& picture, std::int64_t size, std::vector<std::uint8_t>& out) {
  const std::int64_t height = picture.height, width = picture.width;
  const double side = static_cast<double>(std::min(height, width));
  const auto down = taps_of(height, (static_cast<double>(height) - side) / 2, side, size),
             right = taps_of(width, (static_cast<double>(width) - side) / 2, side, size);
  std::vector<double> rows(static_cast<std::size_t>(height * size));  // (H, size), of one channel
  for (std::int64_t c = 0; c < 3; ++c) {
    const std::int64_t first = down.front().first,
                       last = down.back().first +
                              static_cast<std::int64_t>(down.back().weights.size());
    for (std::int64_t y = first; y < last; ++y)
      for (std::int64_t x = 0; x < size; ++x) {
        const Taps& taps = right[static_cast<std::size_t>(x)];
        double value = 0.0;
        for (std::size_t k = 0; k < taps.weights.size(); ++k)
          value += taps.weights[k] *
                   picture.pixels[static_cast<std::size_t>(
                       3 * (y * width + taps.first + static_cast<std::int64_t>(k)) + c)];
        rows[static_cast<std::size_t>(y * size + x)] = value;
      }
    for (std::int64_t y = 0; y < size; ++y)
      for (std::int64_t x = 0; x < size; ++x) {
        const Taps& taps = down[static_cast<std::size_t>(y)];
        double value = 0.0;
        for (std::size_t k = 0; k < taps.weights.size(); ++k)
          value += taps.weights[k] * rows[static_cast<std::size_t>(
                                         (taps.first + static_cast<std::int64_t>(k)) * size + x)];
        out.push_back(static_cast<std::uint8_t>(std::clamp(std::lround(value), 0L, 255L)));
      }
  }
}

}  // namespace

bool is_image_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  if (has_classes(folder)) return true;
  const std::vector<fs::path> parts = entries(folder, Kind::folders);
  return std::any_of(parts.begin(), parts.end(), has_classes);
}

ImageFolders image_folders(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder / "train", error)) return {folder, {}};
  for (const char* name : {"test", "val", "valid"})
    if (fs::is_directory(folder / name, error)) return {folder / "train", folder / name};
  return {folder / "train", {}};
}

ImageFolder read_image_folder(const fs::path& folder, std::int64_t size, const ImageFolder* like) {
  constexpr std::int64_t most_size = 1024;
  constexpr std::size_t most_classes = 256;  // labels are kept as bytes
  if (size < 1 || size > most_size)
    throw ValueError(
        fmt::format("images are scaled to 1 to {} pixels a side, but {} came", most_size, size));
  const std::vector<fs::path> folders = entries(folder, Kind::folders);
  ImageFolder result;
  if (like) result.classes = like->classes;
  auto set = std::make_shared<ImageSet>();
  set->channels = 3, set->height = set->width = size;
  for (const fs::path& one : folders) {
    const std::string name = one.filename().string();
    auto found = std::find(result.classes.begin(), result.classes.end(), name);
    if (found == result.classes.end()) {
      if (like)
        fail_file(one, "a folder for one of the classes {} is expected",
                  fmt::join(like->classes, ", "));
      found = result.classes.insert(found, name);
    }
    const auto label = static_cast<std::size_t>(found - result.classes.begin());
    const std::vector<fs::path> files = entries(one, Kind::images);
    if (files.empty()) fail_file(one, "PNG or JPEG files are expected, but the folder has none");
    if (result.classes.size() > most_classes)
      fail_file(folder, "at most {} classes are expected, but there are {}", most_classes,
                folders.size());
    for (const fs::path& file : files) {
      append_scaled(read_picture(file), size, set->pixels);
      set->labels.push_back(static_cast<std::uint8_t>(label));
    }
  }
  if (result.classes.size() < 2)
    fail_file(folder,
              "a folder with images for each of at least 2 classes is expected, but there "
              "{} {}",
              result.classes.size() == 1 ? "is" : "are", result.classes.size());
  set->classes = static_cast<std::int64_t>(result.classes.size());
  result.images = std::move(set);
  return result;
}

}  // namespace ebb::data
