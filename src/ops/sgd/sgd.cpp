#include "ops/sgd/sgd.h"

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

// Inputs: parameter, gradient, rate, gradient_scale and, with momentum, velocity.
std::vector<TensorType> infer(const Call& call, const SgdAttributes& a) {
  call.require_floating(0);
  const DType state = state_dtype(call.dtype(0));
  require_like_parameter(call, 1, call.dtype(0), "the gradient");
  require_scalar(call, 2, f64, "the rate");
  require_scalar(call, 3, state, "the gradient scale");
  if (!(a.momentum >= 0.0 && a.momentum < 1.0))
    call.fail_value("momentum must be in [0, 1); got " + Attributes(a).text());
  if (!(a.clip_value > 0.0))
    call.fail_value("the bound of clipping must be positive; got " + Attributes(a).text());
  if (a.nesterov && a.momentum == 0.0) call.fail_value("Nesterov's form needs momentum");
  if ((a.momentum > 0.0) != (call.count() == 5))
    call.fail_value("a velocity goes with momentum, and only then");
  if (call.count() == 4) return {call.inputs[0]};
  require_like_parameter(call, 4, state, "the velocity");
  return {call.inputs[0], call.inputs[4]};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const SgdAttributes& a) {
  const DType state = state_dtype(in[0].dtype());
  const Tensor p = cast(in[0], state), rate = cast(in[2], state);
  Tensor g = cast(in[1], state) * in[3];
  if (std::isfinite(a.clip_value)) g = clamp(g, -a.clip_value, a.clip_value);
  g = g + p * a.weight_decay;
  if (a.momentum == 0.0) return {cast(p - rate * g, in[0].dtype())};
  const Tensor velocity = in[4] * a.momentum + g;
  const Tensor direction = a.nesterov ? g + velocity * a.momentum : velocity;
  return {cast(p - rate * direction, in[0].dtype()), velocity};
}

}  // namespace

const Op& sgd_op() {
  static const TypedOp<SgdAttributes> op({
      .name = "sgd",
      .summary = "one step of gradient descent with momentum on a parameter",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = 0, .input = 0}, {.output = 1, .input = 4}},
      .cpu = bind_sgd_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_sgd_cuda),
  });
  return op;
}

SgdResult sgd_update(const Tensor& parameter, const Tensor& gradient, const Tensor& velocity,
                     const Tensor& rate, const Tensor& gradient_scale,
                     const SgdAttributes& attributes) {
  std::vector<Tensor> inputs{parameter, gradient, rate, gradient_scale};
  if (velocity) inputs.push_back(velocity);
  const auto out = apply(sgd_op(), inputs, attributes);
  return {out[0], velocity ? out[1] : Tensor{}};
}

}  // namespace ebb
