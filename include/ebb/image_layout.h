// Where the channels of a batch of images lie.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb {

enum class ImageLayout : std::uint8_t {
  channels_first,  // (N, C, H, W)
  channels_last,   // (N, H, W, C): what a GPU's tensor cores want
};

inline constexpr std::string_view image_layout_names[] = {"channels-first", "channels-last"};
constexpr std::string_view name(ImageLayout layout) {
  return image_layout_names[static_cast<int>(layout)];
}

}  // namespace ebb
