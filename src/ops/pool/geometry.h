// The sizes of a pooling, and which cells of the image a window covers.
#pragma once

#include <algorithm>

#include "ops/image_axes.h"
#include "ops/pool/pool.h"

namespace ebb {

struct PoolGeometry {
  std::int64_t batch = 0, channels = 0;
  Size2d image, result;
  PoolAttributes a;

  // The shapes are in the layout of the attributes.
  PoolGeometry(const Shape& images, const Shape& results, const PoolAttributes& attributes)
      : a(attributes) {
    const Shape x = as_channels_first(images, a.layout), y = as_channels_first(results, a.layout);
    batch = x[0], channels = x[1];
    image = {x[2], x[3]}, result = {y[2], y[3]};
  }

  bool channels_last() const { return a.layout == ImageLayout::channels_last; }
  std::int64_t image_cells() const { return image.h * image.w; }
  std::int64_t result_cells() const { return result.h * result.w; }

  // Rows of the window at result row p that lie in the image.
  std::int64_t top(std::int64_t p) const { return p * a.stride.h - a.padding.h; }
  std::int64_t first_row(std::int64_t p) const { return std::max<std::int64_t>(0, -top(p)); }
  std::int64_t last_row(std::int64_t p) const { return std::min(a.kernel.h, image.h - top(p)); }
  std::int64_t first_column(std::int64_t q) const {
    return std::max<std::int64_t>(0, a.padding.w - q * a.stride.w);
  }
  std::int64_t last_column(std::int64_t q) const {
    return std::min(a.kernel.w, image.w + a.padding.w - q * a.stride.w);
  }

  // The divisor of a window's sum.
  std::int64_t divisor(std::int64_t p, std::int64_t q) const {
    if (a.count_pad) return a.kernel.h * a.kernel.w;
    return (last_row(p) - first_row(p)) * (last_column(q) - first_column(q));
  }
};

// Kernels for images with the channels last (pool_channels_last_cpu.cpp).
Kernel bind_max_pool2d_channels_last(const KernelRequest& request, const PoolGeometry& geometry);
Kernel bind_max_pool2d_grad_channels_last(const KernelRequest& request,
                                          const PoolGeometry& geometry);
Kernel bind_max_pool2d_gather_channels_last(const KernelRequest& request,
                                            const PoolGeometry& geometry);
Kernel bind_avg_pool2d_channels_last(const KernelRequest& request, const PoolGeometry& geometry);
Kernel bind_avg_pool2d_grad_channels_last(const KernelRequest& request,
                                          const PoolGeometry& geometry);

}  // namespace ebb
