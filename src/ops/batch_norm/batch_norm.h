#pragma once

#include "ebb/image_layout.h"
#include "ebb/op.h"
#include "ops/dispatch.h"

namespace ebb {

// x as (samples, channels, run): a run is the contiguous part of a channel in one sample. With
// channels last every position is a sample, and runs have one element.
struct ChannelExtent {
  std::int64_t samples = 1, channels = 1, run = 1;

  ChannelExtent(const Shape& x, ImageLayout layout);
  std::int64_t per_channel() const { return samples * run; }
};

// The axis of x that holds the channels.
constexpr int channel_axis(const Shape& x, ImageLayout layout) {
  return layout == ImageLayout::channels_last ? x.rank() - 1 : 1;
}

// Inputs: x (N, C, ...) or (N, ..., C), then, if they exist, weight (C), bias (C) and a tensor like
// x that is added to the result. Outputs: y like x, or y + added, optionally with relu: the same
// bits as the ops `add` and `relu` on a stored y; mean and biased var (C).
struct BatchNormAttributes {
  double eps = 0.0;
  bool weight = false, bias = false;
  ImageLayout layout = ImageLayout::channels_first;
  bool relu = false, added = false;
  bool operator==(const BatchNormAttributes&) const = default;
  void visit(auto&& field) {
    field("eps", eps);
    field("weight", weight);
    field("bias", bias);
    field.choice("layout", layout, image_layout_names);
    field("relu", relu);
    field("added", added);
  }
  int bias_input() const { return weight ? 2 : 1; }
  int added_input() const { return bias_input() + (bias ? 1 : 0); }
};

// Inputs: x, the gradient of y or relu(y), mean, var, weight if there is one, and with relu the
// bias if there is one, in x's dtype or in the statistics' dtype and then rounded to x's. Backward
// recomputes y to rebuild relu's mask, so that it reads no more memory than without relu. Outputs:
// the gradients of x, weight and bias. The gradient of x needs the sums of the other two in any
// case.
struct BatchNormGradAttributes {
  double eps = 0.0;
  bool weight = false;
  ImageLayout layout = ImageLayout::channels_first;
  bool relu = false, bias = false;  // bias: whether y has a bias, needed only with relu
  bool operator==(const BatchNormGradAttributes&) const = default;
  void visit(auto&& field) {
    field("eps", eps);
    field("weight", weight);
    field.choice("layout", layout, image_layout_names);
    field("relu", relu);
    field("bias", bias);
  }
  int bias_input() const { return weight ? 5 : 4; }
};

// The largest number that rounds to 0 in S: half of its smallest positive number, a tie that goes
// to 0. The rounded y is positive if y was above this, and negative if y was below minus this.
template <class S>
inline constexpr Compute<S> lost_in = 0;
template <>
inline constexpr float lost_in<MachineHalf> = 0x1p-25f;
template <>
inline constexpr float lost_in<BFloat16> = 0x1p-134f;

const Op& batch_norm_op();
const Op& batch_norm_grad_op();

// Operands in order. The positions of the bias and of the added tensor depend on which others
// exist: see the attributes.
struct BatchNorm {
  enum Input : int { x, weight };
  enum Output : int { y, mean, var };
};
struct BatchNormGrad {
  enum Input : int { x, grad, mean, var, weight };
  enum Output : int { of_x, of_weight, of_bias };
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
