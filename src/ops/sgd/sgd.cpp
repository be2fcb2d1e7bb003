#include "ops/sgd/sgd.h"

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/group/group.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const SgdAttributes& a) {
  call.require_floating(SgdUpdate::parameter);
  const DType state = state_dtype(call.dtype(SgdUpdate::parameter));
  require_gradient(call);
  require_scalar(call, SgdUpdate::rate, f64, "the rate");
  require_scalar(call, SgdUpdate::gradient_scale, state, "the gradient scale");
  if (!(a.momentum >= 0.0 && a.momentum < 1.0))
    call.fail_value("momentum must be in [0, 1); got " + Attributes(a).text());
  if (!(a.clip_value > 0.0))
    call.fail_value("the bound of clipping must be positive; got " + Attributes(a).text());
  if (a.nesterov && a.momentum == 0.0) call.fail_value("Nesterov's form needs momentum");
  const bool moving = a.momentum > 0.0;
  if (call.count() != 4 + (moving ? 1 : 0) + (a.form.has_companion() ? 1 : 0))
    call.fail_value("a velocity goes with momentum, and a companion with a form that has one");
  std::vector<TensorType> outputs{call.inputs[SgdUpdate::parameter]};
  if (moving) {
    require_like_parameter(call, SgdUpdate::velocity, state, "the velocity");
    outputs.push_back(call.inputs[SgdUpdate::velocity]);
  }
  require_form(call, moving ? 5 : 4, a.form, outputs);
  return outputs;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const SgdAttributes& a) {
  const DType state = state_dtype(in[SgdUpdate::parameter].dtype());
  const Tensor p = opened(in, a.form), rate = cast(in[SgdUpdate::rate], state);
  Tensor g = cast(in[SgdUpdate::gradient], state) * in[SgdUpdate::gradient_scale];
  if (std::isfinite(a.clip_value)) g = clamp(g, -a.clip_value, a.clip_value);
  g = g + p * a.weight_decay;
  std::vector<Tensor> out(1);
  if (a.momentum > 0.0) {
    out.push_back(in[SgdUpdate::velocity] * a.momentum + g);
    g = a.nesterov ? g + out[1] * a.momentum : out[1];
  }
  close(p - rate * g, in[SgdUpdate::parameter].dtype(), a.form, out);
  return out;
}

// Every call of a group draws with its own key.
std::optional<Attributes> in_common_sgd(std::span<const Arg>, const Attributes& attributes) {
  SgdAttributes a = attributes.as<SgdAttributes>();
  a.form.key = 0;
  return a;
}

}  // namespace

const Op& sgd_op() {
  static const TypedOp<SgdAttributes> op({
      .name = "sgd",
      .summary = "one step of gradient descent with momentum on a parameter",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = SgdUpdate::new_parameter, .input = SgdUpdate::parameter},
                   {.output = SgdUpdate::new_velocity, .input = SgdUpdate::velocity},
                   {.output = SgdUpdate::new_companion, .input = SgdUpdate::companion}},
      .cpu = bind_sgd_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_sgd_cuda),
      .group = sgd_group_op,
  });
  return op;
}

const GroupOp& sgd_group_op() {
  static const GroupOp op({
      .name = "sgd_group",
      .summary = "several small updates of sgd at once",
      .member = sgd_op,
      .in_common = in_common_sgd,
      .cuda = EBB_CUDA_KERNEL(bind_sgd_group_cuda),
  });
  return op;
}

SgdResult sgd_update(const Tensor& parameter, const Tensor& gradient, const Tensor& velocity,
                     const Tensor& rate, const Tensor& gradient_scale,
                     const SgdAttributes& attributes, const Tensor& companion) {
  std::vector<Tensor> inputs{parameter, gradient, rate, gradient_scale};
  if (velocity) inputs.push_back(velocity);
  if (companion) inputs.push_back(companion);
  const auto out = apply(sgd_op(), inputs, attributes);
  return {out[0], velocity ? out[1] : Tensor{}, companion ? out.back() : Tensor{}};
}

}  // namespace ebb
