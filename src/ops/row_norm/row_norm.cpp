#include "ops/row_norm/row_norm.h"

#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/dispatch.h"
#include "ops/row_axis.h"

namespace ebb {

const Op& layer_norm_op();
const Op& rms_norm_op();

namespace {

void require_rows(const Call& call) {
  call.require_floating(0);
  if (call.shape(0).rank() == 0) call.fail_shape("needs at least one axis");
  if (call.shape(0).back() == 0) call.fail_shape("cannot normalise rows of no elements");
}

void require_per_column(const Call& call, int input, std::string_view what) {
  call.require_same_dtype(0, input);
  const std::int64_t columns = call.shape(0).back();
  if (call.shape(input) != Shape{columns})
    call.fail_shape(fmt::format("the {} must have shape ({},), but has {}", what, columns,
                                to_string(call.shape(input))));
}

TensorType statistics_type(const Call& call) {
  return {without_last_axis(call.shape(0)), compute_dtype(call.dtype(0))};
}

template <Centring centring>
std::vector<TensorType> infer(const Call& call, const RowNormAttributes& a) {
  require_rows(call);
  if (!(a.eps >= 0.0)) call.fail_value(fmt::format("eps must not be negative, but is {}", a.eps));
  int input = 1;
  if (a.weight) require_per_column(call, input++, "weight");
  if (a.bias) require_per_column(call, input++, "bias");
  const TensorType statistics = statistics_type(call);
  if (centring == Centring::yes) return {call.inputs[0], statistics, statistics};
  return {call.inputs[0], statistics};
}

template <Centring centring>
std::vector<TensorType> infer_grad(const Call& call, const RowNormGradAttributes& a) {
  require_rows(call);
  if (call.inputs[1] != call.inputs[0]) call.fail_shape("x and the gradient must be of one type");
  const RowNormGradInputs at(centring, a);
  for (std::size_t input = 2; input <= at.rstd; ++input)
    if (call.inputs[input] != statistics_type(call))
      call.fail_shape(fmt::format("the statistics must be {}", to_string(statistics_type(call))));
  if (a.weight) require_per_column(call, static_cast<int>(at.weight), "weight");
  if (a.added && call.inputs[at.added] != call.inputs[0])
    call.fail_shape(fmt::format("what is added must be {}", to_string(call.inputs[0])));
  std::vector<TensorType> outputs{call.inputs[0]};
  const TensorType per_column{{call.shape(0).back()}, call.dtype(0)};
  for (bool asked : {a.weight_grad, a.bias_grad, a.sum})
    if (asked) outputs.push_back(per_column);
  return outputs;
}

// Rows as the references see them: everything from x, in the dtype of the statistics.
struct Normalised {
  Tensor mean, rstd;  // (..., 1)
  Tensor value;       // (..., C)
};
template <Centring centring>
Normalised normalised(const Tensor& x, double eps) {
  Tensor rows = cast(x, compute_dtype(x.dtype())), centre;
  if (centring == Centring::yes) {
    centre = mean(rows, {-1}, Keep::yes);
    rows = rows - centre;
  }
  const Tensor rstd = rsqrt(mean(square(rows), {-1}, Keep::yes) + eps);
  return {centre, rstd, rows * rstd};
}

template <Centring centring>
std::vector<Tensor> reference(std::span<const Tensor> in, const RowNormAttributes& a) {
  const auto [centre, rstd, value] = normalised<centring>(in[0], a.eps);
  Tensor y = value;
  std::size_t input = 1;
  if (a.weight) y = y * cast(in[input++], y.dtype());
  if (a.bias) y = y + cast(in[input++], y.dtype());
  std::vector<Tensor> outputs{cast(y, in[0].dtype())};
  if (centring == Centring::yes) outputs.push_back(squeeze(centre, -1));
  outputs.push_back(squeeze(rstd, -1));
  return outputs;
}

// The statistics given as inputs only save time. They are recomputed here, so that derivatives
// through them are included.
template <Centring centring>
std::vector<Tensor> grad_reference(std::span<const Tensor> in, const RowNormGradAttributes& a) {
  const auto [centre, rstd, value] = normalised<centring>(in[0], a.eps);
  const Tensor g = cast(in[1], value.dtype());
  const RowNormGradInputs at(centring, a);
  const Tensor scaled = a.weight ? g * cast(in[at.weight], g.dtype()) : g;
  Tensor inner = scaled - value * mean(scaled * value, {-1}, Keep::yes);
  if (centring == Centring::yes) inner = inner - mean(scaled, {-1}, Keep::yes);
  const DType dtype = in[0].dtype();
  const Shape per_column{in[0].shape().back()};
  std::vector<Tensor> outputs{cast(inner * rstd, dtype)};
  if (a.added) outputs[0] = outputs[0] + in[at.added];
  if (a.weight_grad) outputs.push_back(cast(sum_to(g * value, per_column), dtype));
  if (a.bias_grad) outputs.push_back(cast(sum_to(g, per_column), dtype));
  if (a.sum) outputs.push_back(cast(sum_to(cast(outputs[0], value.dtype()), per_column), dtype));
  return outputs;
}

// Only y has a gradient: only the backward op reads the statistics, and it depends on them only
// through x.
template <Centring centring>
std::vector<Tensor> gradient(const GradientCall& call, const RowNormAttributes& a) {
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (!call.has_grad(0)) return result;
  const int bias = a.weight ? 2 : 1;
  const RowNormGradAttributes attributes{
      a.eps, a.weight, a.weight && call.needs(1), a.bias && call.needs(bias), false, false};
  std::vector<Tensor> inputs{call.input(0), call.grad(), call.output(1)};
  if (centring == Centring::yes) inputs.push_back(call.output(2));
  if (a.weight) inputs.push_back(call.input(1));
  const Op& op = centring == Centring::yes ? layer_norm_grad_op() : rms_norm_grad_op();
  const std::vector<Tensor> grads = apply(op, std::move(inputs), attributes);
  result[0] = grads[0];
  if (attributes.weight_grad) result[1] = grads[1];
  if (attributes.bias_grad) result[static_cast<std::size_t>(bias)] = grads.back();
  return result;
}

template <Centring centring>
OpSpec<RowNormAttributes> forward_spec(std::string_view name, std::string_view summary) {
  OpSpec<RowNormAttributes> spec{.name = name, .summary = summary};
  spec.infer = infer<centring>;
  spec.gradient = gradient<centring>;
  spec.saved = {.inputs = {0, 1}, .outputs = {1}};
  if (centring == Centring::yes) spec.saved.outputs.insert(2);
  spec.reference = reference<centring>;
  spec.in_place = {{.output = 0, .input = 0}};
  spec.cpu = bind_row_norm_cpu<centring>;
  spec.cuda = EBB_CUDA_KERNEL(bind_row_norm_cuda<centring>);
  spec.cost = cost_of_rows<RowNormAttributes, 2, 600>;
  return spec;
}

template <Centring centring>
OpSpec<RowNormGradAttributes> backward_spec(std::string_view name, std::string_view summary) {
  OpSpec<RowNormGradAttributes> spec{.name = name, .summary = summary};
  spec.infer = infer_grad<centring>;
  spec.reference = grad_reference<centring>;
  spec.in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 0}};
  spec.cpu = bind_row_norm_grad_cpu<centring>;
  spec.cuda = EBB_CUDA_KERNEL(bind_row_norm_grad_cuda<centring>);
  spec.cost = cost_of_rows<RowNormGradAttributes, 4, 450>;
  return spec;
}

Tensor normalise(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 double eps) {
  std::vector<Tensor> inputs{x};
  for (const Tensor& t : {weight, bias})
    if (t) inputs.push_back(t);
  return apply(op, std::move(inputs),
               RowNormAttributes{eps, static_cast<bool>(weight), static_cast<bool>(bias)})
      .front();
}

}  // namespace

const Op& layer_norm_op() {
  static const TypedOp<RowNormAttributes> op(forward_spec<Centring::yes>(
      "layer_norm", "rows of the last axis with mean 0 and variance 1, scaled and shifted"));
  return op;
}
const Op& layer_norm_grad_op() {
  static const TypedOp<RowNormGradAttributes> op(
      backward_spec<Centring::yes>("layer_norm_grad", "the gradients of layer_norm"));
  return op;
}
const Op& rms_norm_op() {
  static const TypedOp<RowNormAttributes> op(
      forward_spec<Centring::no>("rms_norm", "rows of the last axis with mean square 1, scaled"));
  return op;
}
const Op& rms_norm_grad_op() {
  static const TypedOp<RowNormGradAttributes> op(
      backward_spec<Centring::no>("rms_norm_grad", "the gradients of rms_norm"));
  return op;
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return normalise(layer_norm_op(), x, weight, bias, eps);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return normalise(rms_norm_op(), x, weight, {}, eps);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const Call call = call_on(layer_norm_op(), x);
  if (x.rank() < 2) call.fail_shape("group_norm needs axes (N, C, ...)");
  const std::int64_t channels = x.shape()[1];
  if (groups < 1 || channels % groups != 0)
    call.fail_value(
        fmt::format("{} channels do not divide into {} equal groups", channels, groups));
  Shape per_channel = Shape::filled(x.rank() - 1, 1);
  per_channel[0] = channels;
  std::int64_t run = channels / groups;  // elements of a group in one sample
  for (int i = 2; i < x.rank(); ++i) run *= x.shape()[i];
  Tensor y = reshape(layer_norm(reshape(x, {x.shape()[0] * groups, run}), {}, {}, eps), x.shape());
  const auto affine = [&](const Tensor& t, std::string_view what) {
    if (t.shape() != Shape{channels})
      call.fail_shape(fmt::format("the {} of group_norm must have shape ({},), but has {}", what,
                                  channels, to_string(t.shape())));
    return reshape(t, per_channel);
  };
  if (weight) y = y * affine(weight, "weight");
  if (bias) y = y + affine(bias, "bias");
  return y;
}

}  // namespace ebb
