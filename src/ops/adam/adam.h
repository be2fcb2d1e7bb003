// The update of Adam and AdamW as one op: parameter, gradient and both moments are read once, and
// the parameter and moments are updated in place.
#pragma once

#include <cmath>
#include <cstdint>

#include "ebb/op.h"
#include "ebb/parameter_form.h"

namespace ebb {

struct AdamAttributes {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decoupled = true;    // AdamW: decay acts on the parameter, not through the gradient
  bool stochastic = false;  // stochastic rounding of bfloat16 moments
  std::uint64_t key = 0;    // of stochastic rounding
  ParameterForm form = {};
  bool operator==(const AdamAttributes&) const = default;
  void visit(auto&& field) {
    field("beta1", beta1);
    field("beta2", beta2);
    field("eps", eps);
    field("weight_decay", weight_decay);
    field("decoupled", decoupled);
    field("stochastic", stochastic);
    field("key", key);
    form.visit(field);
  }
};

struct AdamResult {
  Tensor parameter, mean, square;
  Tensor companion = {};
};

// The moments are float32 (float64 for a float64 parameter) or bfloat16. `rate` and `step` (counted
// from 1) are float64 scalars; the gradient is multiplied by the scalar `gradient_scale` first.
AdamResult adam_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& square, const Tensor& rate, const Tensor& step,
                       const Tensor& gradient_scale, const AdamAttributes& attributes,
                       const Tensor& companion = {});

// A step in primitive ops. All tensors have the dtype of the computation, and the gradient is
// already scaled.
AdamResult adam_in_primitives(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                              const Tensor& square, const Tensor& rate, const Tensor& step,
                              const AdamAttributes& attributes);

// Coefficients derived from attributes, rate and step, in the kernel's compute type.
template <class C>
struct AdamCoefficients {
  C beta1, rest1, beta2, rest2, eps;
  C step_size;  // rate and correction of the mean
  C root;       // correction of the square root of the mean square
  C kept;       // factor on the parameter: decoupled decay
  C coupled;    // decay through the gradient

  constexpr AdamCoefficients(const AdamAttributes& a, double rate, double step)
      : beta1(static_cast<C>(a.beta1)),
        rest1(static_cast<C>(1.0 - a.beta1)),
        beta2(static_cast<C>(a.beta2)),
        rest2(static_cast<C>(1.0 - a.beta2)),
        eps(static_cast<C>(a.eps)),
        step_size(static_cast<C>(rate / (1.0 - std::pow(a.beta1, step)))),
        root(static_cast<C>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, step)))),
        kept(a.decoupled ? C(1) - static_cast<C>(rate) * static_cast<C>(a.weight_decay) : C(1)),
        coupled(a.decoupled ? C(0) : static_cast<C>(a.weight_decay)) {}
};

void check_adam(const Call& call, const AdamAttributes& attributes);

// Operands in order.
struct AdamUpdate {
  enum Input : int { parameter, gradient, mean, square, rate, step, gradient_scale, companion };
  enum Output : int { new_parameter, new_mean, new_square, new_companion };
};

const Op& adam_op();
const GroupOp& adam_group_op();
Kernel bind_adam_cpu(const KernelRequest& request, const AdamAttributes& attributes);
Kernel bind_adam_cuda(const KernelRequest& request, const AdamAttributes& attributes);
Kernel bind_adam_group_cuda(std::span<const KernelRequest> calls,
                            std::span<const Attributes> attributes);

}  // namespace ebb
