#include "ops/adafactor/adafactor.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

void check(const Call& call, const AdafactorAttributes& a) {
  if (!(a.eps_square > 0.0 && a.eps_scale >= 0.0 && a.clip_threshold > 0.0 && a.beta2_decay < 0.0 &&
        a.beta1 >= 0.0 && a.beta1 < 1.0))
    call.fail_value(
        "eps_square and clip_threshold must be positive, eps_scale not negative, beta2_decay "
        "negative and beta1 in [0, 1); got " +
        Attributes(a).text());
  if (a.warm_up && !a.relative_step) call.fail_value("warm_up is of the relative step");
}

std::vector<TensorType> infer(const Call& call, const AdafactorAttributes& a) {
  call.require_floating(AdafactorUpdate::parameter);
  check(call, a);
  const DType state = state_dtype(call.dtype(AdafactorUpdate::parameter));
  const bool factored = call.shape(AdafactorUpdate::parameter).rank() >= 2;
  require_gradient(call);
  require_scalar(call, AdafactorUpdate::rate, f64, "the rate");
  require_scalar(call, AdafactorUpdate::step, f64, "the step");
  require_scalar(call, AdafactorUpdate::gradient_scale, state, "the gradient scale");

  std::vector<TensorType> kept;
  if (factored) {
    const FactorShapes factors = factor_shapes(call.shape(AdafactorUpdate::parameter));
    kept = {{factors.rows, state}, {factors.columns, state}};
  } else {
    kept = {{call.shape(AdafactorUpdate::parameter), state}};
  }
  if (a.momentum) kept.push_back({call.shape(AdafactorUpdate::parameter), state});
  std::string expected;
  for (const TensorType& type : kept) expected += (expected.empty() ? "" : ", ") + to_string(type);
  const auto state_end = call.inputs.end() - (a.form.has_companion() ? 1 : 0);
  if (!std::equal(call.inputs.begin() + AdafactorUpdate::state, state_end, kept.begin(),
                  kept.end()))
    call.fail_shape("the state must be " + expected);

  const int companion = AdafactorUpdate::state + static_cast<int>(kept.size());
  kept.insert(kept.begin(), call.inputs[AdafactorUpdate::parameter]);
  require_form(call, companion, a.form, kept);
  return kept;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const AdafactorAttributes& a) {
  const DType compute = state_dtype(in[AdafactorUpdate::parameter].dtype());
  const bool factored = in[AdafactorUpdate::parameter].rank() >= 2;
  const Tensor p = opened(in, a.form), g = cast(in[AdafactorUpdate::gradient], compute) *
                                           in[AdafactorUpdate::gradient_scale];
  const Tensor &rate = in[AdafactorUpdate::rate], &step = in[AdafactorUpdate::step];

  const Tensor rest = pow(step, a.beta2_decay);  // 1 - beta2
  const auto kept = [&](const Tensor& before, const Tensor& now) {
    return before * cast(1.0 - rest, compute) + now * cast(rest, compute);
  };
  std::vector<Tensor> out(1);
  const Tensor squares = square(g) + a.eps_square;
  Tensor u;
  if (factored) {
    const Tensor rows = kept(in[AdafactorUpdate::state], mean(squares, {-1})),
                 columns = kept(in[AdafactorUpdate::state + 1], mean(squares, {-2}));
    u = g * rsqrt(unsqueeze(rows / mean(rows, {-1}, Keep::yes), -1)) *
        rsqrt(unsqueeze(columns, -2));
    out.insert(out.end(), {rows, columns});
  } else {
    out.push_back(kept(in[AdafactorUpdate::state], squares));
    u = g * rsqrt(out.back());
  }
  const auto root_mean_square = [](const Tensor& x) { return sqrt(mean(square(x))); };
  if (std::isfinite(a.clip_threshold))
    u = u / maximum(scalar_like(u, 1.0), root_mean_square(u) / a.clip_threshold);

  Tensor size = rate;
  if (a.relative_step)
    size = minimum(a.warm_up ? rate * step / adafactor_warm_up_steps : rate, rsqrt(step));
  size = cast(size, compute);
  if (a.scale_by_parameter) size = size * maximum(scalar_like(p, a.eps_scale), root_mean_square(p));
  Tensor taken = u * size;
  if (a.momentum) {
    taken = in[AdafactorUpdate::state + out.size() - 1] * a.beta1 + taken * (1.0 - a.beta1);
    out.push_back(taken);
  }
  const Tensor decay = (a.decay_by_step ? size : cast(rate, compute)) * a.weight_decay;
  close(p * (1.0 - decay) - taken, in[AdafactorUpdate::parameter].dtype(), a.form, out);
  return out;
}

// The gradient is read up to three times, and the parameter once more for its size.
Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const AdafactorAttributes& a) {
  Cost cost = default_cost(inputs, outputs);
  const int more = (inputs[AdafactorUpdate::parameter].shape.rank() >= 2 ? 1 : 0) +
                   (std::isfinite(a.clip_threshold) ? 1 : 0) + (a.scale_by_parameter ? 1 : 0);
  cost.flops = 12.0 * static_cast<double>(inputs[AdafactorUpdate::parameter].shape.elements());
  cost.moved += more * inputs[AdafactorUpdate::parameter].bytes();
  return cost;
}

}  // namespace

FactorShapes factor_shapes(const Shape& shape) {
  FactorShapes factors{shape, shape};
  factors.rows.erase(shape.rank() - 1);
  factors.columns.erase(shape.rank() - 2);
  return factors;
}

const Op& adafactor_op() {
  static const TypedOp<AdafactorAttributes> op({
      .name = "adafactor",
      .summary = "one step of Adafactor on a parameter and its factored second moment",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = AdafactorUpdate::new_parameter, .input = AdafactorUpdate::parameter},
                   {.output = AdafactorUpdate::new_state, .input = AdafactorUpdate::state},
                   {.output = AdafactorUpdate::new_state + 1, .input = AdafactorUpdate::state + 1},
                   {.output = AdafactorUpdate::new_state + 2, .input = AdafactorUpdate::state + 2},
                   {.output = AdafactorUpdate::new_state + 3, .input = AdafactorUpdate::state + 3}},
      .cpu = bind_adafactor_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_adafactor_cuda),
      .cost = cost,
  });
  return op;
}

std::vector<Tensor> adafactor_update(const Tensor& parameter, const Tensor& gradient,
                                     const Tensor& rate, const Tensor& step,
                                     const Tensor& gradient_scale, const std::vector<Tensor>& state,
                                     const AdafactorAttributes& attributes,
                                     const Tensor& companion) {
  std::vector<Tensor> inputs{parameter, gradient, rate, step, gradient_scale};
  inputs.insert(inputs.end(), state.begin(), state.end());
  if (companion) inputs.push_back(companion);
  return apply(adafactor_op(), std::move(inputs), attributes);
}

}  // namespace ebb
