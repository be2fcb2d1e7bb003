// Pooling over windows of images, (N, C, H, W) or (N, H, W, C), and the ops its gradients need.
//
//   max_pool2d(x) → y, offset            offset: the cell within the window, row by row, one byte
//   max_pool2d_grad(offset, g) → x       adds each g to the cell it was taken from
//   max_pool2d_gather(offset, x) → y     takes the cells at the offsets: the transpose
//   avg_pool2d(x) → y
//   avg_pool2d_grad(g) → x               the transpose
#pragma once

#include "ebb/op.h"
#include "ebb/ops.h"
#include "ops/size_field.h"

namespace ebb {

struct PoolAttributes {
  Size2d kernel = 1, stride = 1, padding = 0;
  bool count_pad = true;  // of means only
  Size2d size = 0;        // of the image that a gradient gives
  ImageLayout layout = ImageLayout::channels_first;

  bool operator==(const PoolAttributes&) const = default;
  void visit(auto&& field) {
    visit_size(field, "kernel", kernel);
    visit_size(field, "stride", stride);
    visit_size(field, "padding", padding);
    field("count_pad", count_pad);
    visit_size(field, "size", size);
    field.choice("layout", layout, image_layout_names);
  }
};

const Op& max_pool2d_op();
const Op& max_pool2d_grad_op();
const Op& max_pool2d_gather_op();
const Op& avg_pool2d_op();
const Op& avg_pool2d_grad_op();

Kernel bind_max_pool2d(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_max_pool2d_cuda(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_max_pool2d_grad(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_max_pool2d_grad_cuda(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_max_pool2d_gather(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_max_pool2d_gather_cuda(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_avg_pool2d(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_avg_pool2d_cuda(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_avg_pool2d_grad(const KernelRequest& request, const PoolAttributes& attributes);
Kernel bind_avg_pool2d_grad_cuda(const KernelRequest& request, const PoolAttributes& attributes);

}  // namespace ebb
