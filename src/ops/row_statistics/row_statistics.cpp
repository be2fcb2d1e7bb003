// logsumexp, var and argmax: one number for each row. The ops work over the last axis; the public
// functions move and join axes.
#include "ops/row_statistics/row_statistics.h"

#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/row_axis.h"

namespace ebb {
namespace {

void require_columns(const Call& call) {
  if (call.shape(0).rank() == 0) call.fail_shape("needs at least one axis");
  if (call.shape(0).back() == 0 && RowShape(call.shape(0)).rows > 0)
    call.fail_shape("has no value over no elements");
}

// For no elements it is log 0.
std::vector<TensorType> infer_logsumexp(const Call& call, const NoAttributes&) {
  call.require_floating(0);
  if (call.shape(0).rank() == 0) call.fail_shape("needs at least one axis");
  return {{without_last_axis(call.shape(0)), call.dtype(0)}};
}

std::vector<TensorType> infer_var(const Call& call, const VarAttributes& a) {
  call.require_floating(0);
  require_columns(call);
  if (a.correction < 0)
    call.fail_value(fmt::format("the correction must not be negative, but is {}", a.correction));
  if (call.shape(0).back() <= a.correction)
    call.fail_shape(fmt::format("needs more elements than its correction {}, but has {}",
                                a.correction, call.shape(0).back()));
  return {{without_last_axis(call.shape(0)), call.dtype(0)}};
}

std::vector<TensorType> infer_argmax(const Call& call, const NoAttributes&) {
  if (call.dtype(0) == b8) call.fail_dtype("booleans have no order; cast() them first");
  require_columns(call);
  return {{without_last_axis(call.shape(0)), i64}};
}

std::vector<Tensor> logsumexp_reference(std::span<const Tensor> in, const NoAttributes&) {
  const Tensor& x = in[0];
  if (x.shape().elements() == 0) return {log(sum(x, {-1}))};
  // An infinite largest element is not subtracted: inf - inf would be NaN.
  const Tensor most = max(x, {-1}, Keep::yes), zero = scalar_like(x, 0.0);
  const Tensor shift = stop_gradient(where(equal(most - most, zero), most, zero));
  return {log(sum(exp(x - shift), {-1})) + squeeze(shift, -1)};
}

// exp(x - y), computed from x alone if y is finite, because the rounding error of y would be
// amplified. For an infinite y, softmax is undefined and exp(x - y) is used.
std::vector<Tensor> logsumexp_gradient(const GradientCall& call, const NoAttributes&) {
  const Tensor &x = call.input(0), y = unsqueeze(call.output(0), -1);
  const Tensor finite = equal(y - y, scalar_like(y, 0.0));
  return {where(finite, softmax(x), exp(x - y)) * unsqueeze(call.grad(), -1)};
}

double divisor(const Shape& shape, const VarAttributes& a) {
  return static_cast<double>(shape.back() - a.correction);
}

std::vector<Tensor> var_reference(std::span<const Tensor> in, const VarAttributes& a) {
  const Tensor centred = in[0] - mean(in[0], {-1}, Keep::yes);
  return {sum_squares(centred, {-1}) * (1.0 / divisor(in[0].shape(), a))};
}

std::vector<Tensor> var_gradient(const GradientCall& call, const VarAttributes& a) {
  const Tensor& x = call.input(0);
  const Tensor share = unsqueeze(call.grad(), -1) * (2.0 / divisor(x.shape(), a));
  return {(x - mean(x, {-1}, Keep::yes)) * share};
}

}  // namespace

const Op& logsumexp_op() {
  static const TypedOp<NoAttributes> op({
      .name = "logsumexp",
      .summary = "the logarithm of the sum of exponentials over the last axis",
      .infer = infer_logsumexp,
      .gradient = logsumexp_gradient,
      .saved = {.inputs = {0}, .outputs = {0}},
      .reference = logsumexp_reference,
      .cpu = bind_logsumexp_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_logsumexp_cuda),
      .cost = cost_of_rows<NoAttributes, 6, 950>,
      .narrowing = Narrowing::refused,
  });
  return op;
}

const Op& var_op() {
  static const TypedOp<VarAttributes> op({
      .name = "var",
      .summary = "the variance over the last axis",
      .infer = infer_var,
      .gradient = var_gradient,
      .saved = {.inputs = {0}, .outputs = {}},
      .reference = var_reference,
      .cpu = bind_var_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_var_cuda),
      .cost = cost_of_rows<VarAttributes, 1, 400>,
      .narrowing = Narrowing::refused,
  });
  return op;
}

const Op& argmax_op() {
  static const TypedOp<NoAttributes> op({
      .name = "argmax",
      .summary = "where the largest lies along the last axis: the first of equals; NaN wins",
      .infer = infer_argmax,
      .gradient = zero_gradient<NoAttributes>,
      .cpu = bind_argmax_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_argmax_cuda),
      .cost = cost_of_rows<NoAttributes, 1, 1000>,
  });
  return op;
}

Tensor logsumexp(const Tensor& x, const Axes& axes, Keep keep) {
  const auto [rows, result] = rows_over(logsumexp_op(), x, axes, keep);
  return reshape(apply1(logsumexp_op(), {rows}), result);
}

Tensor var(const Tensor& x, const Axes& axes, std::int64_t correction, Keep keep) {
  const auto [rows, result] = rows_over(var_op(), x, axes, keep);
  return reshape(apply1(var_op(), {rows}, VarAttributes{correction}), result);
}

Tensor argmax(const Tensor& x, int axis, Keep keep) {
  const auto [rows, result] = rows_over(argmax_op(), x, {axis}, keep);
  return reshape(apply1(argmax_op(), {rows}), result);
}

}  // namespace ebb
