#pragma once

#include "ebb/image_layout.h"
#include "ebb/op.h"

namespace ebb {

// x as (samples, channels, run): a run is what a channel has in one sample along memory. With the
// channels last every position is a sample of its own, and runs have one element.
struct ChannelExtent {
  std::int64_t samples = 1, channels = 1, run = 1;

  ChannelExtent(const Shape& x, ImageLayout layout);
  std::int64_t per_channel() const { return samples * run; }
};

// The axis of x that holds the channels.
constexpr int channel_axis(const Shape& x, ImageLayout layout) {
  return layout == ImageLayout::channels_last ? x.rank() - 1 : 1;
}

// Inputs: x (N, C, ...) or (N, ..., C), then weight (C) and bias (C) as they exist.
// Outputs: y like x; mean and var (C), the latter biased.
struct BatchNormAttributes {
  double eps = 0.0;
  bool weight = false, bias = false;
  ImageLayout layout = ImageLayout::channels_first;
  bool operator==(const BatchNormAttributes&) const = default;
  void visit(auto&& field) const {
    field("eps", eps);
    field("weight", weight);
    field("bias", bias);
    if (layout != ImageLayout::channels_first) field("layout", std::string(name(layout)));
  }
};

// Inputs: x, the gradient of y, mean, var, then weight if there is one.
// Outputs: the gradients of x, weight and bias. The last two are sums that the first needs anyway.
struct BatchNormGradAttributes {
  double eps = 0.0;
  bool weight = false;
  ImageLayout layout = ImageLayout::channels_first;
  bool operator==(const BatchNormGradAttributes&) const = default;
  void visit(auto&& field) const {
    field("eps", eps);
    field("weight", weight);
    if (layout != ImageLayout::channels_first) field("layout", std::string(name(layout)));
  }
};

Kernel bind_batch_norm_cpu(const KernelRequest& request, const BatchNormAttributes& attributes);
Kernel bind_batch_norm_cuda(const KernelRequest& request, const BatchNormAttributes& attributes);
Kernel bind_batch_norm_grad_cpu(const KernelRequest& request,
                                const BatchNormGradAttributes& attributes);
Kernel bind_batch_norm_grad_cuda(const KernelRequest& request,
                                 const BatchNormGradAttributes& attributes);
// Where runs have one element (batch_norm_columns_cuda.cu):
Kernel bind_batch_norm_columns_cuda(const KernelRequest& request,
                                    const BatchNormAttributes& attributes);
Kernel bind_batch_norm_grad_columns_cuda(const KernelRequest& request,
                                         const BatchNormGradAttributes& attributes);

}  // namespace ebb
