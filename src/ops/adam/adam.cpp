#include "ops/adam/adam.h"

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/group/group.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const AdamAttributes& a) {
  call.require_floating(AdamUpdate::parameter);
  require_gradient(call);
  require_like_parameter(call, AdamUpdate::mean, kept_dtype(call, AdamUpdate::mean), "the mean");
  require_like_parameter(call, AdamUpdate::square, call.dtype(AdamUpdate::mean), "the mean square");
  require_scalar(call, AdamUpdate::rate, f64, "the rate");
  require_scalar(call, AdamUpdate::step, f64, "the step");
  require_scalar(call, AdamUpdate::gradient_scale, state_dtype(call.dtype(AdamUpdate::parameter)),
                 "the gradient scale");
  check_adam(call, a);
  if (a.stochastic && call.dtype(AdamUpdate::mean) != bf16)
    call.fail_dtype("only moments in bfloat16 are rounded stochastically");
  std::vector<TensorType> outputs{call.inputs[AdamUpdate::parameter], call.inputs[AdamUpdate::mean],
                                  call.inputs[AdamUpdate::square]};
  require_form(call, AdamUpdate::companion, a.form, outputs);
  return outputs;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const AdamAttributes& a) {
  const DType compute = state_dtype(in[AdamUpdate::parameter].dtype()),
              state = in[AdamUpdate::mean].dtype();
  const AdamResult r = adam_in_primitives(
      opened(in, a.form), cast(in[AdamUpdate::gradient], compute) * in[AdamUpdate::gradient_scale],
      cast(in[AdamUpdate::mean], compute), cast(in[AdamUpdate::square], compute),
      in[AdamUpdate::rate], in[AdamUpdate::step], a);
  std::vector<Tensor> out{{}, cast(r.mean, state), cast(r.square, state)};
  close(r.parameter, in[AdamUpdate::parameter].dtype(), a.form, out);
  return out;
}

// Every call of a group draws with its own key.
std::optional<Attributes> in_common_adam(std::span<const Arg>, const Attributes& attributes) {
  AdamAttributes a = attributes.as<AdamAttributes>();
  a.key = a.form.key = 0;
  return a;
}

}  // namespace

void check_adam(const Call& call, const AdamAttributes& a) {
  if (!(a.beta1 >= 0.0 && a.beta1 < 1.0 && a.beta2 >= 0.0 && a.beta2 < 1.0 && a.eps >= 0.0))
    call.fail_value("betas must be in [0, 1) and eps must not be negative; got " +
                    Attributes(a).text());
}

AdamResult adam_in_primitives(const Tensor& p, const Tensor& gradient, const Tensor& mean,
                              const Tensor& square, const Tensor& rate, const Tensor& step,
                              const AdamAttributes& a) {
  const Tensor g = a.decoupled ? gradient : gradient + p * a.weight_decay;
  const Tensor next_mean = mean * a.beta1 + g * (1.0 - a.beta1);
  const Tensor next_square = square * a.beta2 + ebb::square(g) * (1.0 - a.beta2);
  const auto correction = [&](double beta) { return 1.0 - pow(scalar_like(step, beta), step); };
  const Tensor step_size = cast(rate / correction(a.beta1), p.dtype());
  const Tensor root = cast(rsqrt(correction(a.beta2)), p.dtype());
  const Tensor kept = a.decoupled ? p * (1.0 - cast(rate, p.dtype()) * a.weight_decay) : p;
  // The square root has no derivative at zero; this lower bound, far below eps, makes it finite.
  const Tensor least = scalar_like(next_square, 1e-36);
  return {kept - step_size * next_mean / (sqrt(maximum(next_square, least)) * root + a.eps),
          next_mean, next_square};
}

const Op& adam_op() {
  static const TypedOp<AdamAttributes> op({
      .name = "adam",
      .summary = "one step of Adam or AdamW on a parameter and its moments",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = AdamUpdate::new_parameter, .input = AdamUpdate::parameter},
                   {.output = AdamUpdate::new_mean, .input = AdamUpdate::mean},
                   {.output = AdamUpdate::new_square, .input = AdamUpdate::square},
                   {.output = AdamUpdate::new_companion, .input = AdamUpdate::companion}},
      .cpu = bind_adam_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_adam_cuda),
      .cost = cost_per_element<AdamAttributes, 4>,
      .group = adam_group_op,
  });
  return op;
}

const GroupOp& adam_group_op() {
  static const GroupOp op({
      .name = "adam_group",
      .summary = "several small updates of adam at once",
      .member = adam_op,
      .in_common = in_common_adam,
      .cuda = EBB_CUDA_KERNEL(bind_adam_group_cuda),
  });
  return op;
}

AdamResult adam_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& square, const Tensor& rate, const Tensor& step,
                       const Tensor& gradient_scale, const AdamAttributes& attributes,
                       const Tensor& companion) {
  std::vector<Tensor> inputs{parameter, gradient, mean, square, rate, step, gradient_scale};
  if (companion) inputs.push_back(companion);
  const auto out = apply(adam_op(), std::move(inputs), attributes);
  return {out[0], out[1], out[2], companion ? out[3] : Tensor{}};
}

}  // namespace ebb
