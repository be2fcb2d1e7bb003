// The update of Adam and AdamW as one op: parameter, gradient and both moments are read once and
// the parameter and moments written over.
#pragma once

#include "ebb/op.h"

namespace ebb {

struct AdamAttributes {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decoupled = true;  // AdamW: decay acts on the parameter, not through the gradient
  bool operator==(const AdamAttributes&) const = default;
  void visit(auto&& field) const {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("decoupled", decoupled);
  }
};

struct AdamResult {
  Tensor parameter, mean, square;
};

// `rate` and `step` (counted from 1) are float64 scalars; the gradient is multiplied by the scalar
// `gradient_scale` first.
AdamResult adam_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& square, const Tensor& rate, const Tensor& step,
                       const Tensor& gradient_scale, const AdamAttributes& attributes);

const Op& adam_op();
Kernel bind_adam_cpu(const KernelRequest& request, const AdamAttributes& attributes);
Kernel bind_adam_cuda(const KernelRequest& request, const AdamAttributes& attributes);

}  // namespace ebb
