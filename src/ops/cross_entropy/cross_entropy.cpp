// Cross-entropy of softmax(logits) against class numbers, with one fused op for each direction.
// Forward keeps only the logsumexp of each row; backward computes the probabilities from it and may
// overwrite the logits.
#include "ops/cross_entropy/cross_entropy.h"

#include <fmt/core.h>

#include "ops/cost.h"
#include "ops/cuda_kernels.h"
#include "ops/loss/loss.h"

namespace ebb {

void check_cross_entropy(const Call& call, int targets, std::int64_t rows, std::int64_t classes,
                         double label_smoothing) {
  call.require_index(targets);
  if (call.shape(targets) != Shape{rows})
    call.fail_shape(fmt::format("the targets must have shape ({},)", rows));
  if (classes == 0) call.fail_shape("there must be at least one class");
  if (!(label_smoothing >= 0.0 && label_smoothing <= 1.0))
    call.fail_value(fmt::format("label_smoothing must be in [0, 1], but is {}", label_smoothing));
}

Tensor row_logsumexp(const Tensor& logits) {
  const Tensor top = stop_gradient(max(logits, {1}, Keep::yes));
  return squeeze(log(sum(exp(logits - top), {1}, Keep::yes)) + top, 1);
}

std::vector<Tensor> cross_entropy_rows(const Tensor& logits, const Tensor& targets,
                                       const CrossEntropyAttributes& a) {
  const Tensor lse = row_logsumexp(logits);
  return {nll_rows(logits - unsqueeze(lse, 1), targets, a.ignore_index, a.label_smoothing), lse};
}

Tensor cross_entropy_rows_grad(const Tensor& logits, const Tensor& targets, const Tensor& g,
                               const CrossEntropyAttributes& a) {
  const std::int64_t classes = logits.shape()[1];
  const ClassTargets t(targets, a.ignore_index);
  const Tensor p = exp(logits - unsqueeze(row_logsumexp(logits), 1));
  // Forward has already checked the targets.
  const Tensor places = arange(classes, t.index.dtype(), t.index.device());
  const Tensor hit = cast(equal(unsqueeze(t.index, 1), places), logits.dtype());
  const Tensor expected =
      hit * (1.0 - a.label_smoothing) + a.label_smoothing / static_cast<double>(classes);
  return (p - expected) * unsqueeze(where(t.valid, g, scalar_like(g, 0.0)), 1);
}

namespace {

std::vector<TensorType> infer(const Call& call, const CrossEntropyAttributes& a) {
  call.require_floating(0);
  call.require_rank(0, 2);
  const std::int64_t rows = call.shape(0)[0];
  check_cross_entropy(call, 1, rows, call.shape(0)[1], a.label_smoothing);
  const TensorType per_row{{rows}, statistics_dtype(call.dtype(0))};
  return {per_row, per_row};
}

std::vector<TensorType> infer_grad(const Call& call, const CrossEntropyAttributes& a) {
  const std::vector<TensorType> forward = infer(call, a);
  if (call.inputs[2] != forward[1])
    call.fail_shape(fmt::format("the logsumexp must be {}", to_string(forward[1])));
  if (call.inputs[3] != forward[0])
    call.fail_shape(fmt::format("the gradient must be {}", to_string(forward[0])));
  return {call.inputs[0]};
}

// The saved logsumexp only saves backward a pass over the logits: differentiation treats it as a
// constant, and the backward op's derivative with respect to the logits is total.
std::vector<Tensor> gradient(const GradientCall& call, const CrossEntropyAttributes& a) {
  const Tensor &logits = call.input(0), &lse = call.output(1);
  Tensor result;
  if (call.has_grad(0))
    result = apply1(cross_entropy_grad_op(),
                    {logits, call.input(1), stop_gradient(lse), call.grad(0)}, a);
  if (call.has_grad(1)) {
    const Tensor p = exp(cast(logits, lse.dtype()) - unsqueeze(lse, 1));
    const Tensor part = cast(p * unsqueeze(call.grad(1), 1), logits.dtype());
    result = result ? result + part : part;
  }
  return {result, Tensor{}};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const CrossEntropyAttributes& a) {
  const std::vector<Tensor> rows =
      cross_entropy_rows(cast(in[0], statistics_dtype(in[0].dtype())), in[1], a);
  return {rows[0], rows[1]};
}

std::vector<Tensor> reference_grad(std::span<const Tensor> in, const CrossEntropyAttributes& a) {
  const DType wide = statistics_dtype(in[0].dtype());
  return {cast(cross_entropy_rows_grad(cast(in[0], wide), in[1], in[3], a), in[0].dtype())};
}

}  // namespace

const Op& cross_entropy_op() {
  static const TypedOp<CrossEntropyAttributes> op({
      .name = "cross_entropy",
      .summary = "-log softmax at the target of each row, and the logsumexp",
      .infer = infer,
      .gradient = gradient,
      .saved = {.inputs = {0, 1}, .outputs = {1}},
      .reference = reference,
      .cpu = bind_cross_entropy_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_cross_entropy_cuda),
      .cost = cost_of_rows<CrossEntropyAttributes, 5, 1500>,
  });
  return op;
}

const Op& cross_entropy_grad_op() {
  static const TypedOp<CrossEntropyAttributes> op({
      .name = "cross_entropy_grad",
      .summary = "the gradient of cross_entropy in the logits",
      .infer = infer_grad,
      .reference = reference_grad,
      .in_place = {{.output = 0, .input = 0}},
      .cpu = bind_cross_entropy_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_cross_entropy_grad_cuda),
      .cost = cost_of_rows<CrossEntropyAttributes, 5, 500>,
  });
  return op;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  const LossRows rows("cross_entropy", logits, targets);
  const Tensor losses =
      apply(cross_entropy_op(), {rows.values, rows.targets},
            CrossEntropyAttributes{options.ignore_index, options.label_smoothing})[0];
  return reduce_loss(reshape(losses, targets.shape()), targets, options.reduction,
                     options.ignore_index);
}

}  // namespace ebb
