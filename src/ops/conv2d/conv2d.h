// Two-dimensional convolution and its two gradients. The three are linear in each of their inputs
// and each one's gradients are the other two, so they are closed under differentiation.
//
//   conv2d(x, weight[, bias]) → y          x      (N, C, H, W)
//   conv2d_input_grad(weight, g) → x       weight (O, C / groups, kh, kw)
//   conv2d_weight_grad(x, g) → weight      y, g   (N, O, oh, ow)
//
// With the channels last, x is (N, H, W, C), weight (O, kh, kw, C / groups), y and g (N, oh, ow,
// O).
#pragma once

#include "ebb/op.h"
#include "ebb/ops.h"
#include "ops/size_field.h"

namespace ebb {

struct Conv2dAttributes {
  Size2d stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  Size2d size = 0;  // of the result of a gradient: the image's or the kernel's
  ImageLayout layout = ImageLayout::channels_first;

  bool operator==(const Conv2dAttributes&) const = default;
  void visit(auto&& field) {
    visit_size(field, "stride", stride);
    visit_size(field, "padding", padding);
    visit_size(field, "dilation", dilation);
    field("groups", groups);
    visit_size(field, "size", size);
    field.choice("layout", layout, image_layout_names);
  }
};

// Every size of a convolution. All but `batch` are at least 1.
struct ConvGeometry {
  std::int64_t batch = 0, groups = 1;
  std::int64_t in = 1, out = 1;  // channels
  Size2d image, kernel, result;
  Size2d stride, padding, dilation;
  ImageLayout layout = ImageLayout::channels_first;

  bool channels_last() const { return layout == ImageLayout::channels_last; }
  std::int64_t image_elements() const { return in * image.h * image.w; }
  std::int64_t result_elements() const { return out * result.h * result.w; }
  std::int64_t weight_elements() const { return out * (in / groups) * kernel.h * kernel.w; }
};

// The shapes are in the order of the attributes' layout.
ConvGeometry conv_geometry(const Shape& x, const Shape& weight, const Shape& y,
                           const Conv2dAttributes& attributes);

enum class ConvKind { forward, input_grad, weight_grad };

const Op& conv2d_op();
const Op& conv2d_input_grad_op();
const Op& conv2d_weight_grad_op();

// conv2d_cpu.cpp
Kernel bind_conv2d_cpu(const KernelRequest& request, const Conv2dAttributes& attributes);
Kernel bind_conv2d_cuda(const KernelRequest& request, const Conv2dAttributes& attributes);
Kernel bind_conv2d_input_grad_cpu(const KernelRequest& request, const Conv2dAttributes& attributes);
Kernel bind_conv2d_input_grad_cuda(const KernelRequest& request,
                                   const Conv2dAttributes& attributes);
Kernel bind_conv2d_weight_grad_cpu(const KernelRequest& request,
                                   const Conv2dAttributes& attributes);
Kernel bind_conv2d_weight_grad_cuda(const KernelRequest& request,
                                    const Conv2dAttributes& attributes);

// The number of images that copying kernels process at a time: few enough that the copies stay in
// the second-level cache, in runs of nearly equal length.
std::int64_t images_at_once(const ConvGeometry& geometry, Bytes element);

// Kernels of one element type, whose inputs and outputs are in the order of the op of that kind.
// By image to columns and BLAS, for float and double (conv2d_columns.cpp):
template <class T>
Kernel bind_conv_columns(ConvKind kind, const ConvGeometry& geometry, bool bias);
// By oneDNN, for float32 and bfloat16; nothing when it has no kernel for these sizes
// (conv2d_onednn.cpp):
std::optional<Kernel> bind_conv_onednn(ConvKind kind, const ConvGeometry& geometry, bool bias,
                                       DType dtype);

}  // namespace ebb
