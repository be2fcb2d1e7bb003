#include "ops/lion/lion.h"

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/group/group.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const LionAttributes& a) {
  call.require_floating(LionUpdate::parameter);
  require_gradient(call);
  require_like_parameter(call, LionUpdate::mean, kept_dtype(call, LionUpdate::mean), "the mean");
  require_scalar(call, LionUpdate::rate, f64, "the rate");
  require_scalar(call, LionUpdate::gradient_scale, state_dtype(call.dtype(LionUpdate::parameter)),
                 "the gradient scale");
  if (!(a.beta1 >= 0.0 && a.beta1 < 1.0 && a.beta2 >= 0.0 && a.beta2 < 1.0))
    call.fail_value("betas must be in [0, 1); got " + Attributes(a).text());
  std::vector<TensorType> outputs{call.inputs[LionUpdate::parameter],
                                  call.inputs[LionUpdate::mean]};
  require_form(call, LionUpdate::companion, a.form, outputs);
  return outputs;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const LionAttributes& a) {
  const DType compute = state_dtype(in[LionUpdate::parameter].dtype());
  const Tensor p = opened(in, a.form),
               g = cast(in[LionUpdate::gradient], compute) * in[LionUpdate::gradient_scale],
               mean = cast(in[LionUpdate::mean], compute),
               rate = cast(in[LionUpdate::rate], compute);
  const Tensor direction = sign(mean * a.beta1 + g * (1.0 - a.beta1));
  const Tensor next = p * (1.0 - rate * a.weight_decay) - rate * direction;
  std::vector<Tensor> out{{},
                          cast(mean * a.beta2 + g * (1.0 - a.beta2), in[LionUpdate::mean].dtype())};
  close(next, in[LionUpdate::parameter].dtype(), a.form, out);
  return out;
}

// Every call of a group draws with its own key.
std::optional<Attributes> in_common_lion(std::span<const Arg>, const Attributes& attributes) {
  LionAttributes a = attributes.as<LionAttributes>();
  a.form.key = 0;
  return a;
}

}  // namespace

const Op& lion_op() {
  static const TypedOp<LionAttributes> op({
      .name = "lion",
      .summary = "one step of Lion on a parameter and its mean gradient",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = LionUpdate::new_parameter, .input = LionUpdate::parameter},
                   {.output = LionUpdate::new_mean, .input = LionUpdate::mean},
                   {.output = LionUpdate::new_companion, .input = LionUpdate::companion}},
      .cpu = bind_lion_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_lion_cuda),
      .cost = cost_per_element<LionAttributes, 9>,
      .group = lion_group_op,
  });
  return op;
}

const GroupOp& lion_group_op() {
  static const GroupOp op({
      .name = "lion_group",
      .summary = "several small updates of lion at once",
      .member = lion_op,
      .in_common = in_common_lion,
      .cuda = EBB_CUDA_KERNEL(bind_lion_group_cuda),
  });
  return op;
}

LionResult lion_update(const Tensor& parameter, const Tensor& gradient, const Tensor& mean,
                       const Tensor& rate, const Tensor& gradient_scale,
                       const LionAttributes& attributes, const Tensor& companion) {
  std::vector<Tensor> inputs{parameter, gradient, mean, rate, gradient_scale};
  if (companion) inputs.push_back(companion);
  const auto out = apply(lion_op(), std::move(inputs), attributes);
  return {out[0], out[1], companion ? out[2] : Tensor{}};
}

}  // namespace ebb
