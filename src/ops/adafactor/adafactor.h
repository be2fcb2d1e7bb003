// The update of Adafactor as one op. The step of a matrix is never stored as a tensor: passes over
// the gradient compute the means of rows and columns, then the size of the step, then apply it.
#pragma once

#include <limits>

#include "ebb/op.h"
#include "ebb/parameter_form.h"

namespace ebb {

struct AdafactorAttributes {
  bool relative_step = true, warm_up = false, scale_by_parameter = true;
  double beta2_decay = -0.8, eps_square = 1e-30, eps_scale = 1e-3;
  double clip_threshold = std::numeric_limits<double>::infinity();
  bool momentum = false;
  double beta1 = 0.0;  // of the momentum
  double weight_decay = 0.0;
  bool decay_by_step = true;
  ParameterForm form = {};
  bool operator==(const AdafactorAttributes&) const = default;
  void visit(auto&& field) {
    field("relative_step", relative_step);
    field("warm_up", warm_up);
    field("scale_by_parameter", scale_by_parameter);
    field("beta2_decay", beta2_decay);
    field("eps_square", eps_square);
    field("eps_scale", eps_scale);
    field("clip_threshold", clip_threshold);
    field("momentum", momentum);
    field("beta1", beta1);
    field("weight_decay", weight_decay);
    field("decay_by_step", decay_by_step);
    form.visit(field);
  }
};

// Steps of warm_up until the relative step may be as large as the rate.
inline constexpr double adafactor_warm_up_steps = 1e4;

// The shapes of the means of rows (..., R) and columns (..., C) of a tensor (..., R, C).
struct FactorShapes {
  Shape rows, columns;
};
FactorShapes factor_shapes(const Shape& shape);

// `state` holds the mean squares of rows and columns, or, for a parameter of rank below 2, of every
// element; then, with momentum, the mean of the steps. The result is the parameter and the state
// after the step, and the companion of a parameter that has one, which comes last in both. `rate`
// and `step` (counted from 1) are float64 scalars; the gradient is multiplied by the scalar
// `gradient_scale` first.
std::vector<Tensor> adafactor_update(const Tensor& parameter, const Tensor& gradient,
                                     const Tensor& rate, const Tensor& step,
                                     const Tensor& gradient_scale, const std::vector<Tensor>& state,
                                     const AdafactorAttributes& attributes,
                                     const Tensor& companion = {});

// Operands in order; `state` is the first of several: factors or squares, then momentum, then the
// companion.
struct AdafactorUpdate {
  enum Input : int { parameter, gradient, rate, step, gradient_scale, state };
  enum Output : int { new_parameter, new_state };
};

const Op& adafactor_op();
Kernel bind_adafactor_cpu(const KernelRequest& request, const AdafactorAttributes& attributes);
Kernel bind_adafactor_cuda(const KernelRequest& request, const AdafactorAttributes& attributes);

}  // namespace ebb
