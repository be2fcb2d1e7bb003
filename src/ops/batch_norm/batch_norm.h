#pragma once

#include "ebb/op.h"

namespace ebb {

// Inputs: x (N, C, ...), then weight (C) and bias (C) as they exist.
// Outputs: y like x; mean and var (C), the latter biased.
struct BatchNormAttributes {
  double eps = 0.0;
  bool weight = false, bias = false;
  bool operator==(const BatchNormAttributes&) const = default;
  void visit(auto&& field) const {
    field("eps", eps);
    field("weight", weight);
    field("bias", bias);
  }
};

// Inputs: x, the gradient of y, mean, var, then weight if there is one.
// Outputs: the gradients of x, weight and bias. The last two are sums that the first needs anyway.
struct BatchNormGradAttributes {
  double eps = 0.0;
  bool weight = false;
  bool operator==(const BatchNormGradAttributes&) const = default;
  void visit(auto&& field) const {
    field("eps", eps);
    field("weight", weight);
  }
};

Kernel bind_batch_norm_cpu(const KernelRequest& request, const BatchNormAttributes& attributes);
Kernel bind_batch_norm_cuda(const KernelRequest& request, const BatchNormAttributes& attributes);
Kernel bind_batch_norm_grad_cpu(const KernelRequest& request,
                                const BatchNormGradAttributes& attributes);
Kernel bind_batch_norm_grad_cuda(const KernelRequest& request,
                                 const BatchNormGradAttributes& attributes);

}  // namespace ebb
