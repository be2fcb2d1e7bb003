// Where the channels of a batch of images lie.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb {

enum class ImageLayout : std::uint8_t {
  channels_first,  // (N, C, H, W)
  channels_last,   // (N, H, W, C): what a GPU's tensor cores want
};

constexpr std::string_view name(ImageLayout layout) {
  return layout == ImageLayout::channels_last ? "channels-last" : "channels-first";
}

}  // namespace ebb
