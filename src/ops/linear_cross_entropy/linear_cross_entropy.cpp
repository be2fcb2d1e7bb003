// cross_entropy(x · weightᵀ, targets) without the (N, V) logits: forward and backward compute the
// logits of a chunk of rows in the workspace and discard them. Forward keeps the logsumexp of each
// row, from which backward computes the gradient of any part of the logits.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <fmt/core.h>

#include <algorithm>

#include "ops/cuda_kernels.h"
#include "ops/loss/loss.h"

namespace ebb {

namespace {

std::vector<TensorType> infer(const Call& call, const LinearCrossEntropyAttributes& a) {
  call.require_floating(0);
  call.require_same_dtype(0, 1);
  call.require_rank(0, 2);
  call.require_rank(1, 2);
  const std::int64_t rows = call.shape(0)[0], features = call.shape(0)[1];
  if (features == 0) call.fail_shape("x must have at least one feature");
  if (call.shape(1)[1] != features)
    call.fail_shape(fmt::format("the weight must have shape (classes, {})", features));
  check_cross_entropy(call, 2, rows, call.shape(1)[0], a.loss.label_smoothing);
  if (a.chunk < 0) call.fail_value(fmt::format("a chunk must have rows, but chunk is {}", a.chunk));
  const TensorType per_row{{rows}, statistics_dtype(call.dtype(0))};
  return {per_row, per_row};
}

std::vector<TensorType> infer_grad(const Call& call, const LinearCrossEntropyGradAttributes& a) {
  const std::vector<TensorType> forward = infer(call, a.forward);
  if (call.inputs[LinearCrossEntropyGrad::logsumexp] != forward[LinearCrossEntropy::logsumexp])
    call.fail_shape(
        fmt::format("the logsumexp must be {}", to_string(forward[LinearCrossEntropy::logsumexp])));
  if (call.inputs[LinearCrossEntropyGrad::grad] != forward[LinearCrossEntropy::losses])
    call.fail_shape(
        fmt::format("the gradient must be {}", to_string(forward[LinearCrossEntropy::losses])));
  std::vector<TensorType> outputs;
  if (a.x) outputs.push_back(call.inputs[LinearCrossEntropy::x]);
  if (a.weight) outputs.push_back(call.inputs[LinearCrossEntropy::weight]);
  return outputs;
}

std::vector<TensorType> infer_joint(const Call& call,
                                    const LinearCrossEntropyJointAttributes& joint) {
  const LinearCrossEntropyGradAttributes& a = joint.backward;
  std::vector<TensorType> outputs = {infer(call, a.forward)[0]};
  if (call.inputs[LinearCrossEntropyJoint::grad] != outputs[0])
    call.fail_shape(fmt::format("the gradient must be {}", to_string(outputs[0])));
  if (a.x) outputs.push_back(call.inputs[LinearCrossEntropy::x]);
  if (a.weight) outputs.push_back(call.inputs[LinearCrossEntropy::weight]);
  return outputs;
}

// The requested gradients of x and the weight, from the gradient of the logits.
std::vector<Tensor> from_logits(const Tensor& dlogits, const Tensor& x, const Tensor& weight,
                                bool x_needed, bool weight_needed) {
  std::vector<Tensor> result;
  if (x_needed) result.push_back(matmul(dlogits, weight));
  if (weight_needed) result.push_back(matmul(dlogits, x, Transpose::yes));
  return result;
}

// As in cross_entropy, the saved logsumexp is a constant to differentiation. A gradient of the
// logsumexp itself, which the library's own losses do not have, goes through the full logits.
std::vector<Tensor> gradient(const GradientCall& call, const LinearCrossEntropyAttributes& a) {
  const Tensor &x = call.input(0), &weight = call.input(1), &lse = call.output(1);
  const bool needs_x = call.needs(0), needs_weight = call.needs(1);
  std::vector<Tensor> parts;
  if (call.has_grad(0))
    parts = apply(linear_cross_entropy_grad_op(),
                  {x, weight, call.input(2), stop_gradient(lse), call.grad(0)},
                  LinearCrossEntropyGradAttributes{a, needs_x, needs_weight});
  if (call.has_grad(1)) {
    const Tensor p = exp(cast(linear(x, weight), lse.dtype()) - unsqueeze(lse, 1));
    const std::vector<Tensor> more = from_logits(cast(p * unsqueeze(call.grad(1), 1), x.dtype()), x,
                                                 weight, needs_x, needs_weight);
    for (std::size_t i = 0; i < more.size(); ++i)
      if (parts.size() == i)
        parts.push_back(more[i]);
      else
        parts[i] = parts[i] + more[i];
  }
  std::vector<Tensor> result(3);
  if (needs_x) result[0] = parts.front();
  if (needs_weight) result[1] = parts.back();
  return result;
}

std::vector<Tensor> reference(std::span<const Tensor> in, const LinearCrossEntropyAttributes& a) {
  const DType wide = statistics_dtype(in[0].dtype());
  const std::vector<Tensor> rows =
      cross_entropy_rows(linear(cast(in[0], wide), cast(in[1], wide)), in[2], a.loss);
  return {rows[0], rows[1]};
}

std::vector<Tensor> reference_grad(std::span<const Tensor> in,
                                   const LinearCrossEntropyGradAttributes& a) {
  const DType wide = statistics_dtype(in[0].dtype());
  const Tensor x = cast(in[0], wide), weight = cast(in[1], wide);
  std::vector<Tensor> result =
      from_logits(cross_entropy_rows_grad(linear(x, weight), in[LinearCrossEntropyGrad::targets],
                                          in[LinearCrossEntropyGrad::grad], a.forward.loss),
                  x, weight, a.x, a.weight);
  for (Tensor& t : result) t = cast(t, in[0].dtype());
  return result;
}

std::vector<Tensor> reference_joint(std::span<const Tensor> in,
                                    const LinearCrossEntropyJointAttributes& a) {
  const std::vector<Tensor> forward = reference(in, a.backward.forward);
  std::vector<Tensor> result =
      reference_grad(std::vector{in[0], in[1], in[2], forward[1], in[3]}, a.backward);
  result.insert(result.begin(), forward[0]);
  return result;
}

// `products` products of N × D × V, plus the exponential and sums per logit and the fixed cost per
// row, in units of a product's operations.
Cost cost_of(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
             double products) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::product;
  const double logits =
      static_cast<double>(inputs[0].shape[0]) * static_cast<double>(inputs[1].shape[0]);
  result.flops = logits * (2.0 * products * static_cast<double>(inputs[0].shape[1]) + 40.0) +
                 8000.0 * static_cast<double>(inputs[0].shape[0]);
  return result;
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const LinearCrossEntropyAttributes&) {
  return cost_of(inputs, outputs, 1.0);
}

Cost cost_grad(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const LinearCrossEntropyGradAttributes& a) {
  return cost_of(inputs, outputs, 1.0 + (a.x ? 1.0 : 0.0) + (a.weight ? 1.0 : 0.0));
}

// Products of small chunks do not fill a device.
Cost cost_joint(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                const LinearCrossEntropyJointAttributes& a) {
  const std::int64_t chunk = a.backward.forward.chunk;
  const double slower = chunk > 0 ? 1.0 + 40.0 / static_cast<double>(chunk) : 1.0;
  const double products = a.walks + (a.backward.x ? 1.0 : 0.0) + (a.backward.weight ? 1.0 : 0.0);
  return cost_of(inputs, outputs, products * slower);
}

// A processor makes float32's logits once in the same memory, and halves' twice. On a GPU, one walk
// saves a product of four and takes several times the workspace.
std::vector<Variant> variants(std::span<const TensorType> inputs, Device device,
                              const LinearCrossEntropyJointAttributes& a) {
  const Variant one{"one_walk", LinearCrossEntropyJointAttributes{a.backward, 1}},
      two{"two_walks", LinearCrossEntropyJointAttributes{a.backward, 2}};
  if (device.kind == Device::Kind::cuda) return {one, two};
  return {is_half(inputs[0].dtype) ? two : one};
}

}  // namespace

std::int64_t chunk_rows(const LinearCrossEntropyAttributes& a, std::int64_t rows,
                        std::int64_t classes, DType dtype) {
  rows = std::max<std::int64_t>(rows, 1);
  if (a.chunk > 0) return std::min(a.chunk, rows);
  const Bytes row = classes * size_of(statistics_dtype(dtype));
  const std::int64_t most =
      std::max<std::int64_t>(64, (32_MiB).count / std::max<std::int64_t>(row.count, 1));
  const std::int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

const Op& linear_cross_entropy_op() {
  static const TypedOp<LinearCrossEntropyAttributes> op({
      .name = "linear_cross_entropy",
      .summary = "cross_entropy of x · weightᵀ, a chunk of rows at a time",
      .infer = infer,
      .gradient = gradient,
      .saved = {.inputs = {0, 1, 2}, .outputs = {1}},
      .reference = reference,
      .cpu = bind_linear_cross_entropy_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_linear_cross_entropy_cuda),
      .cost = cost,
      .narrowing = Narrowing::sought,
  });
  return op;
}

const Op& linear_cross_entropy_grad_op() {
  static const TypedOp<LinearCrossEntropyGradAttributes> op({
      .name = "linear_cross_entropy_grad",
      .summary = "the gradients of linear_cross_entropy in x and the weight",
      .infer = infer_grad,
      .reference = reference_grad,
      .cpu = bind_linear_cross_entropy_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_linear_cross_entropy_grad_cuda),
      .cost = cost_grad,
  });
  return op;
}

const Op& linear_cross_entropy_joint_op() {
  static const TypedOp<LinearCrossEntropyJointAttributes> op({
      .name = "linear_cross_entropy_joint",
      .summary = "linear_cross_entropy and its gradients in x and the weight, together",
      .infer = infer_joint,
      .reference = reference_joint,
      .cpu = bind_linear_cross_entropy_joint_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_linear_cross_entropy_joint_cuda),
      .cost = cost_joint,
      .variants = variants,
  });
  return op;
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  const LossRows rows("linear_cross_entropy", x, targets);
  const Tensor losses =
      apply(linear_cross_entropy_op(), {rows.values, weight, rows.targets},
            LinearCrossEntropyAttributes{{options.ignore_index, options.label_smoothing},
                                         options.chunk})[0];
  return reduce_loss(reshape(losses, targets.shape()), targets, options.reduction,
                     options.ignore_index);
}

}  // namespace ebb
