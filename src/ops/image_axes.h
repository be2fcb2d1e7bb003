// Converts shapes of images, and of convolution kernels (O, C, h, w), between their layout and (N,
// C, H, W), which checks and geometries use.
#pragma once

#include "ebb/image_layout.h"
#include "ebb/ops.h"

namespace ebb {

inline Shape as_channels_first(const Shape& shape, ImageLayout layout) {
  if (layout == ImageLayout::channels_first) return shape;
  return {shape[0], shape[3], shape[1], shape[2]};
}
inline Tensor as_channels_first(const Tensor& x, ImageLayout layout) {
  return layout == ImageLayout::channels_first ? x : permute(x, {0, 3, 1, 2});
}

inline Shape from_channels_first(const Shape& shape, ImageLayout layout) {
  if (layout == ImageLayout::channels_first) return shape;
  return {shape[0], shape[2], shape[3], shape[1]};
}
inline Tensor from_channels_first(const Tensor& x, ImageLayout layout) {
  return layout == ImageLayout::channels_first ? x : permute(x, {0, 2, 3, 1});
}

}  // namespace ebb
