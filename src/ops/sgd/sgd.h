// The update of gradient descent with momentum as one op.
#pragma once

#include <limits>

#include "ebb/op.h"
#include "ebb/parameter_form.h"

namespace ebb {

struct SgdAttributes {
  double momentum = 0.0, weight_decay = 0.0;
  bool nesterov = false;
  // Elements of the scaled gradient are held in [-clip_value, clip_value].
  double clip_value = std::numeric_limits<double>::infinity();
  ParameterForm form = {};
  bool operator==(const SgdAttributes&) const = default;
  void visit(auto&& field) {
    field("momentum", momentum);
    field("weight_decay", weight_decay);
    field("nesterov", nesterov);
    field("clip_value", clip_value);
    form.visit(field);
  }
};

struct SgdResult {
  Tensor parameter, velocity, companion;
};

// `velocity` is empty when there is no momentum. `rate` is a float64 scalar; the gradient is
// multiplied by the scalar `gradient_scale` first.
SgdResult sgd_update(const Tensor& parameter, const Tensor& gradient, const Tensor& velocity,
                     const Tensor& rate, const Tensor& gradient_scale,
                     const SgdAttributes& attributes, const Tensor& companion = {});

// Operands in order.
struct SgdUpdate {
  enum Input : int { parameter, gradient, rate, gradient_scale, velocity, companion };
  enum Output : int { new_parameter, new_velocity, new_companion };
};

const Op& sgd_op();
const GroupOp& sgd_group_op();
Kernel bind_sgd_cpu(const KernelRequest& request, const SgdAttributes& attributes);
Kernel bind_sgd_cuda(const KernelRequest& request, const SgdAttributes& attributes);
Kernel bind_sgd_group_cuda(std::span<const KernelRequest> calls,
                           std::span<const Attributes> attributes);

}  // namespace ebb
