// softmax and log_softmax along one axis; the ops themselves work along the last.
#include "ops/softmax/softmax.h"

#include "ebb/ops.h"
#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/row_axis.h"

namespace ebb {
namespace {

std::vector<TensorType> infer_softmax(const Call& call, const NoAttributes&) {
  call.require_floating(0);
  if (call.shape(0).rank() == 0) call.fail_shape("needs at least one axis");
  return {call.inputs[0]};
}

std::vector<TensorType> infer_grad(const Call& call, const NoAttributes& a) {
  call.require_same_dtype(0, 1);
  if (call.shape(0) != call.shape(1))
    call.fail_shape("the softmax and its gradient must have the same shape");
  return infer_softmax(call, a);
}

// x less the largest of its row, which cancels out of every result.
Tensor shifted(const Tensor& x) {
  return x.shape().elements() == 0 ? x : x - stop_gradient(max(x, {-1}, Keep::yes));
}

std::vector<Tensor> softmax_reference(std::span<const Tensor> in, const NoAttributes&) {
  const Tensor e = exp(shifted(in[0]));
  return {e / sum(e, {-1}, Keep::yes)};
}

std::vector<Tensor> log_softmax_reference(std::span<const Tensor> in, const NoAttributes&) {
  const Tensor x = shifted(in[0]);
  return {x - log(sum(exp(x), {-1}, Keep::yes))};
}

std::vector<Tensor> softmax_grad_reference(std::span<const Tensor> in, const NoAttributes&) {
  const Tensor &y = in[0], &g = in[1];
  return {y * (g - sum(g * y, {-1}, Keep::yes))};
}

std::vector<Tensor> softmax_gradient(const GradientCall& call, const NoAttributes&) {
  return {apply1(softmax_grad_op(), {call.output(0), call.grad()})};
}

std::vector<Tensor> log_softmax_gradient(const GradientCall& call, const NoAttributes&) {
  const Tensor g = call.grad();
  return {g - exp(call.output(0)) * sum(g, {-1}, Keep::yes)};
}

}  // namespace

const Op& softmax_op() {
  static const TypedOp<NoAttributes> op({
      .name = "softmax",
      .summary = "exponentials that sum to 1 along the last axis",
      .infer = infer_softmax,
      .gradient = softmax_gradient,
      .saved = {.inputs = {}, .outputs = {0}},
      .reference = softmax_reference,
      .in_place = {{.output = 0, .input = 0}},
      .cpu = bind_softmax_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_softmax_cuda),
      .cost = cost_of_rows<NoAttributes, 6, 850>,
  });
  return op;
}

const Op& softmax_grad_op() {
  static const TypedOp<NoAttributes> op({
      .name = "softmax_grad",
      .summary = "the gradient of softmax from its output",
      .infer = infer_grad,
      .reference = softmax_grad_reference,
      .in_place = {{.output = 0, .input = 1}, {.output = 0, .input = 0}},
      .cpu = bind_softmax_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_softmax_grad_cuda),
      .cost = cost_of_rows<NoAttributes, 1, 200>,
  });
  return op;
}

const Op& log_softmax_op() {
  static const TypedOp<NoAttributes> op({
      .name = "log_softmax",
      .summary = "the logarithm of softmax along the last axis",
      .infer = infer_softmax,
      .gradient = log_softmax_gradient,
      .saved = {.inputs = {}, .outputs = {0}},
      .reference = log_softmax_reference,
      .in_place = {{.output = 0, .input = 0}},
      .cpu = bind_log_softmax_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_log_softmax_cuda),
      .cost = cost_of_rows<NoAttributes, 6, 850>,
  });
  return op;
}

Tensor softmax(const Tensor& x, int axis) {
  return along_axis(softmax_op(), x, axis,
                    [](const Tensor& rows) { return apply1(softmax_op(), {rows}); });
}

Tensor log_softmax(const Tensor& x, int axis) {
  return along_axis(log_softmax_op(), x, axis,
                    [](const Tensor& rows) { return apply1(log_softmax_op(), {rows}); });
}

}  // namespace ebb
