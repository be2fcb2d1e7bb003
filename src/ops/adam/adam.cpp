#include "ops/adam/adam.h"

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

// Inputs: parameter, gradient, mean, square, rate, step, gradient_scale.
std::vector<TensorType> infer(const Call& call, const AdamAttributes& a) {
  call.require_floating(0);
  const DType state = state_dtype(call.dtype(0));
  require_like_parameter(call, 1, call.dtype(0), "the gradient");
  require_like_parameter(call, 2, state, "the mean");
  require_like_parameter(call, 3, state, "the mean square");
  require_scalar(call, 4, f64, "the rate");
  require_scalar(call, 5, f64, "the step");
  require_scalar(call, 6, state, "the gradient scale");
  if (!(a.beta1 >= 0.0 && a.beta1 < 1.0 && a.beta2 >= 0.0 && a.beta2 < 1.0 && a.eps >= 0.0))
    call.fail_value("betas must be in [0, 1) and eps must not be negative; got " +
                    Attributes(a).text());
  return {call.inputs[0], call.inputs[2], call.inputs[3]};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const AdamAttributes& a) {
  const DType state = state_dtype(in[0].dtype());
  const Tensor p = cast(in[0], state), rate = cast(in[4], state);
  Tensor g = cast(in[1], state) * in[6];
  if (!a.decoupled) g = g + p * a.weight_decay;
  const Tensor mean = in[2] * a.beta1 + g * (1.0 - a.beta1);
  const Tensor mean_square = in[3] * a.beta2 + square(g) * (1.0 - a.beta2);
  const auto correction = [&](double beta) { return 1.0 - pow(scalar_like(in[5], beta), in[5]); };
  const Tensor step_size = cast(in[4] / correction(a.beta1), state);
  const Tensor root = cast(rsqrt(correction(a.beta2)), state);
  const Tensor kept = a.decoupled ? p * (1.0 - rate * a.weight_decay) : p;
  const Tensor next = kept - step_size * mean / (sqrt(mean_square) * root + a.eps);
  return {cast(next, in[0].dtype()), mean, mean_square};
}

}  // namespace

const Op& adam_op() {
  static const TypedOp<AdamAttributes> op({
      .name = "adam",
      .summary = "one step of Adam or AdamW on a parameter and its moments",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = 0, .input = 0}, {.output = 1, .input = 2}, {.output = 2, .input = 3}},
      .cpu = bind_adam_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_adam_cuda),
      .cost = cost_per_element<AdamAttributes, 14>,
  });
  return op;
}

AdamResult adam_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& square, const Tensor& rate, const Tensor& step,
                       const Tensor& gradient_scale, const AdamAttributes& attributes) {
  const auto out =
      apply(adam_op(), {parameter, gradient, mean, square, rate, step, gradient_scale}, attributes);
  return {out[0], out[1], out[2]};
}

}  // namespace ebb
