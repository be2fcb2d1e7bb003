// The update of Lion as one op.
#pragma once

#include "ebb/op.h"
#include "ebb/parameter_form.h"

namespace ebb {

struct LionAttributes {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;
  ParameterForm form = {};
  bool operator==(const LionAttributes&) const = default;
  void visit(auto&& field) {
    field("beta1", beta1);
    field("beta2", beta2);
    field("weight_decay", weight_decay);
    form.visit(field);
  }
};

struct LionResult {
  Tensor parameter, mean, companion;
};

// The mean is float32 (float64 for a float64 parameter) or bfloat16. `rate` is a float64 scalar;
// the gradient is multiplied by the scalar `gradient_scale` first.
LionResult lion_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& rate, const Tensor& gradient_scale,
                       const LionAttributes& attributes, const Tensor& companion = {});

// Operands in order.
struct LionUpdate {
  enum Input : int { parameter, gradient, mean, rate, gradient_scale, companion };
  enum Output : int { new_parameter, new_mean, new_companion };
};

const Op& lion_op();
const GroupOp& lion_group_op();
Kernel bind_lion_cpu(const KernelRequest& request, const LionAttributes& attributes);
Kernel bind_lion_cuda(const KernelRequest& request, const LionAttributes& attributes);
Kernel bind_lion_group_cuda(std::span<const KernelRequest> calls,
                            std::span<const Attributes> attributes);

}  // namespace ebb
