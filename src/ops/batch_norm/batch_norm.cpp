#include "ops/batch_norm/batch_norm.h"

#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"

namespace ebb {

ChannelExtent::ChannelExtent(const Shape& x, ImageLayout layout)
    : channels(x[channel_axis(x, layout)]) {
  for (int i = 0; i < channel_axis(x, layout); ++i) samples *= x[i];
  for (int i = channel_axis(x, layout) + 1; i < x.rank(); ++i) run *= x[i];
}

namespace {

std::int64_t channels_of(const Shape& x, ImageLayout layout) { return x[channel_axis(x, layout)]; }

void require_channels(const Call& call, ImageLayout layout) {
  call.require_floating(0);
  if (call.shape(0).rank() < 2)
    call.fail_shape(layout == ImageLayout::channels_last ? "needs axes (N, ..., C)"
                                                         : "needs axes (N, C, ...)");
  if (channels_of(call.shape(0), layout) == 0) call.fail_shape("needs at least one channel");
}

void require_per_channel(const Call& call, const TensorType& type, std::string_view what,
                         ImageLayout layout) {
  const std::int64_t channels = channels_of(call.shape(0), layout);
  if (type.shape != Shape{channels})
    call.fail_shape(fmt::format("the {} must have shape ({},), but has {}", what, channels,
                                to_string(type.shape)));
}

TensorType statistics_type(const Call& call, ImageLayout layout) {
  return {{channels_of(call.shape(0), layout)}, compute_dtype(call.dtype(0))};
}

void require_eps(const Call& call, double eps) {
  if (!(eps >= 0.0)) call.fail_value(fmt::format("eps must not be negative, but is {}", eps));
}

std::vector<TensorType> infer(const Call& call, const BatchNormAttributes& a) {
  require_channels(call, a.layout);
  require_eps(call, a.eps);
  if (const std::int64_t values = ChannelExtent(call.shape(0), a.layout).per_channel(); values < 2)
    call.fail_shape(
        fmt::format("needs more than one value in each channel to train, but has {}", values));
  for (int i = 1; i < a.added_input(); ++i) {
    call.require_same_dtype(0, i);
    require_per_channel(call, call.inputs[static_cast<std::size_t>(i)],
                        i == 1 && a.weight ? "weight" : "bias", a.layout);
  }
  if (a.added &&
      call.inputs[static_cast<std::size_t>(a.added_input())] != call.inputs[BatchNorm::x])
    call.fail_shape("x and what is added to the result must be of one type");
  const TensorType statistics = statistics_type(call, a.layout);
  return {call.inputs[BatchNorm::x], statistics, statistics};
}

std::vector<TensorType> infer_grad(const Call& call, const BatchNormGradAttributes& a) {
  require_channels(call, a.layout);
  const TensorType& x = call.inputs[BatchNormGrad::x];
  if (call.inputs[BatchNormGrad::grad] != x)
    call.fail_shape("x and the gradient must be of one type");
  const TensorType statistics = statistics_type(call, a.layout);
  for (auto input : {BatchNormGrad::mean, BatchNormGrad::var})
    if (call.inputs[input] != statistics)
      call.fail_shape(fmt::format("the statistics must be {}", to_string(statistics)));
  if (a.weight) require_per_channel(call, call.inputs[BatchNormGrad::weight], "weight", a.layout);
  if (a.bias && !a.relu) call.fail_value("the bias is read with relu alone");
  if (a.bias) {
    const TensorType& bias = call.inputs[static_cast<std::size_t>(a.bias_input())];
    require_per_channel(call, bias, "bias", a.layout);
    if (bias.dtype != statistics.dtype) call.require_same_dtype(0, a.bias_input());
  }
  const TensorType channels{statistics.shape, call.dtype(0)};
  return {x, channels, channels};
}

// Axes of x except the channels.
Axes other_axes(const Tensor& x, ImageLayout layout) {
  Axes axes;
  for (int i = 0; i < x.rank(); ++i)
    if (i != channel_axis(x.shape(), layout)) axes.push_back(i);
  return axes;
}

// (C) as (C, 1, ...), or (C) with the channels last, to broadcast over x.
Tensor over(const Tensor& x, const Tensor& channels, ImageLayout layout) {
  const int axis = channel_axis(x.shape(), layout);
  Shape shape = Shape::filled(x.rank() - axis, 1);
  shape[0] = x.shape()[axis];
  return cast(reshape(channels, shape), compute_dtype(x.dtype()));
}

struct NormalisedPlanes {
  Tensor mean, var, rstd;  // like x, with size 1 along all axes but the channels'
  Tensor value;            // like x, in the dtype of the statistics
};
NormalisedPlanes normalised_planes(const Tensor& x, double eps, ImageLayout layout) {
  const Tensor values = cast(x, compute_dtype(x.dtype()));
  const Axes axes = other_axes(x, layout);
  const Tensor centre = mean(values, axes, Keep::yes);
  const Tensor spread = mean(square(values - centre), axes, Keep::yes);
  const Tensor rstd = rsqrt(spread + eps);
  return {centre, spread, rstd, (values - centre) * rstd};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const BatchNormAttributes& a) {
  const Tensor& x = in[BatchNorm::x];
  const auto [centre, spread, rstd, value] = normalised_planes(x, a.eps, a.layout);
  Tensor y = value;
  if (a.weight) y = y * over(x, in[BatchNorm::weight], a.layout);
  if (a.bias) y = y + over(x, in[static_cast<std::size_t>(a.bias_input())], a.layout);
  y = cast(y, x.dtype());
  if (a.added) y = y + in.back();
  const Shape channels{channels_of(x.shape(), a.layout)};
  return {a.relu ? relu(y) : y, reshape(centre, channels), reshape(spread, channels)};
}

// The statistics given as inputs only save time. They are recomputed here, so that derivatives
// through them are included.
std::vector<Tensor> grad_reference(std::span<const Tensor> in, const BatchNormGradAttributes& a) {
  const Tensor& x = in[BatchNormGrad::x];
  const Axes axes = other_axes(x, a.layout);
  const auto [centre, spread, rstd, value] = normalised_planes(x, a.eps, a.layout);
  Tensor g = cast(in[BatchNormGrad::grad], value.dtype());
  if (a.relu) {
    Tensor y = a.weight ? value * over(x, in[BatchNormGrad::weight], a.layout) : value;
    if (a.bias) y = y + over(x, cast(in.back(), x.dtype()), a.layout);
    g = where(less_equal(cast(y, x.dtype()), scalar_like(x, 0.0)), scalar_like(g, 0.0), g);
  }
  const Tensor scale = a.weight ? rstd * over(x, in[BatchNormGrad::weight], a.layout) : rstd;
  const Tensor inner = g - mean(g, axes, Keep::yes) - value * mean(g * value, axes, Keep::yes);
  return {cast(inner * scale, x.dtype()), cast(sum(g * value, axes), x.dtype()),
          cast(sum(g, axes), x.dtype())};
}

// Applies relu's mask to the gradient of a sum, which is recomputed for it. Only used by direct
// callers of the op: the pass that makes such nodes runs after differentiation.
Tensor passed_by_sum(const GradientCall& call, const BatchNormAttributes& a) {
  if (!a.relu) return call.grad();
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.input_count(); ++i) inputs.push_back(call.input(i));
  BatchNormAttributes without = a;
  without.relu = false;
  const Tensor sum = apply(batch_norm_op(), std::move(inputs), without)[0];
  return where(less_equal(sum, scalar_like(sum, 0.0)), scalar_like(call.grad(), 0.0), call.grad());
}

// Users see mean and variance only through stop_gradient, and the backward op depends on them only
// through x, so only y has a gradient.
std::vector<Tensor> gradient(const GradientCall& call, const BatchNormAttributes& a) {
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (!call.has_grad(BatchNorm::y)) return result;
  const Tensor g = a.added ? passed_by_sum(call, a) : call.grad();
  std::vector<Tensor> inputs{call.input(BatchNorm::x), g, call.output(BatchNorm::mean),
                             call.output(BatchNorm::var)};
  if (a.weight) inputs.push_back(call.input(BatchNorm::weight));
  const bool relu = a.relu && !a.added, bias = relu && a.bias;
  if (bias) inputs.push_back(call.input(a.bias_input()));
  const std::vector<Tensor> grads =
      apply(batch_norm_grad_op(), std::move(inputs),
            BatchNormGradAttributes{a.eps, a.weight, a.layout, relu, bias});
  result[BatchNorm::x] = grads[BatchNormGrad::of_x];
  if (a.weight) result[BatchNorm::weight] = grads[BatchNormGrad::of_weight];
  if (a.bias) result[static_cast<std::size_t>(a.bias_input())] = grads[BatchNormGrad::of_bias];
  if (a.added) result.back() = g;
  return result;
}

// running + momentum · (value - running), in the dtype of the running statistic.
Tensor moved(const Tensor& running, const Tensor& value, double momentum) {
  if (!running) return {};
  const Tensor old = cast(running, value.dtype());
  return cast(old * (1.0 - momentum) + stop_gradient(value) * momentum, running.dtype());
}

BatchNormResult train(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, double momentum,
                      double eps, ImageLayout layout) {
  std::vector<Tensor> inputs{x};
  for (const Tensor& t : {weight, bias})
    if (t) inputs.push_back(t);
  const std::vector<Tensor> outputs =
      apply(batch_norm_op(), std::move(inputs),
            BatchNormAttributes{eps, static_cast<bool>(weight), static_cast<bool>(bias), layout});
  const double n = static_cast<double>(ChannelExtent(x.shape(), layout).per_channel());
  return {outputs[BatchNorm::y], moved(running_mean, outputs[BatchNorm::mean], momentum),
          moved(running_var, outputs[BatchNorm::var] * (n / (n - 1.0)), momentum)};
}

// Each run of a channel has a fixed cost; with channels last there are no runs.
template <class A, int per_element>
Cost cost_of_planes(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                    const A& attributes) {
  Cost cost = cost_per_element<A, per_element>(inputs, outputs, attributes);
  if (attributes.layout == ImageLayout::channels_first)
    cost.flops += 400.0 * static_cast<double>(inputs[0].shape[0] * inputs[0].shape[1]);
  return cost;
}

}  // namespace

const Op& batch_norm_op() {
  static const TypedOp<BatchNormAttributes> op({
      .name = "batch_norm",
      .summary = "channels with mean 0 and variance 1 over a batch, scaled and shifted",
      .infer = infer,
      .gradient = gradient,
      .saved = {.inputs = {0, 1, 2, 3}, .outputs = {1, 2}},
      .reference = reference,
      .in_place = {{.output = 0, .input = 0}, {.output = 0, .input = 3}},
      .cpu = bind_batch_norm_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_batch_norm_cuda),
      .cost = cost_of_planes<BatchNormAttributes, 8>,
  });
  return op;
}

const Op& batch_norm_grad_op() {
  static const TypedOp<BatchNormGradAttributes> op({
      .name = "batch_norm_grad",
      .summary = "the gradients of batch_norm",
      .infer = infer_grad,
      .reference = grad_reference,
      .in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 0}},
      .cpu = bind_batch_norm_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_batch_norm_grad_cuda),
      .cost = cost_of_planes<BatchNormGradAttributes, 6>,
  });
  return op;
}

BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var, Training training,
                           double momentum, double eps, ImageLayout layout) {
  const Call call = call_on(batch_norm_op(), x);
  require_channels(call, layout);
  require_eps(call, eps);
  const std::pair<std::string_view, const Tensor*> named[] = {{"weight", &weight},
                                                              {"bias", &bias},
                                                              {"running mean", &running_mean},
                                                              {"running variance", &running_var}};
  for (const auto& [what, t] : named)
    if (*t) require_per_channel(call, t->type(), what, layout);
  if (training == Training::yes)
    return train(x, weight, bias, running_mean, running_var, momentum, eps, layout);
  if (!running_mean || !running_var)
    call.fail_value("needs a running mean and variance outside training");
  // One multiply and one add an element, in the dtype of the statistics.
  Tensor scale = rsqrt(cast(running_var, compute_dtype(x.dtype())) + eps);
  if (weight) scale = scale * cast(weight, scale.dtype());
  Tensor shift = -(cast(running_mean, scale.dtype()) * scale);
  if (bias) shift = shift + cast(bias, scale.dtype());
  const Tensor y = cast(x, scale.dtype()) * over(x, scale, layout) + over(x, shift, layout);
  return {cast(y, x.dtype()), running_mean, running_var};
}

}  // namespace ebb
