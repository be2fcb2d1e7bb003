// embedding and embedding_grad: rows read from a table, and rows added back into one. Each is the
// other's gradient, so differentiation stays inside the pair.
#include "ops/embedding/embedding.h"

#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {

const Op& embedding_op();
const Op& embedding_grad_op();

namespace {

std::vector<TensorType> infer_embedding(const Call& call, const NoAttributes&) {
  call.require_rank(0, 2);
  call.require_index(1);
  Shape shape = call.shape(1);
  shape.push_back(call.shape(0)[1]);
  return {{shape, call.dtype(0)}};
}

std::vector<TensorType> infer_grad(const Call& call, const EmbeddingGradAttributes& a) {
  call.require_index(0);
  call.require_floating(1);
  if (a.rows < 0) call.fail_value(fmt::format("a table cannot have {} rows", a.rows));
  Shape lead = call.shape(1);
  if (lead.rank() > 0) lead.erase(lead.rank() - 1);
  if (call.shape(1).rank() == 0 || lead != call.shape(0))
    call.fail_shape("the gradient must have the shape of the ids and one more axis");
  return {{{a.rows, call.shape(1).back()}, call.dtype(1)}};
}

std::vector<Tensor> gradient_embedding(const GradientCall& call, const NoAttributes&) {
  return {apply1(embedding_grad_op(), {call.input(1), call.grad()},
                 EmbeddingGradAttributes{call.input_type(0).shape[0]}),
          Tensor{}};
}

std::vector<Tensor> gradient_grad(const GradientCall& call, const EmbeddingGradAttributes&) {
  return {Tensor{}, embedding(call.grad(), call.input(0))};
}

// Only the selected rows are read, not the whole table.
Cost cost_embedding(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                    const NoAttributes&) {
  return {0.0, inputs[1].bytes() + 2 * outputs[0].bytes()};
}

Cost cost_grad(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
               const EmbeddingGradAttributes&) {
  return {static_cast<double>(inputs[1].shape.elements()),
          inputs[0].bytes() + inputs[1].bytes() + outputs[0].bytes()};
}

}  // namespace

const Op& embedding_op() {
  static const TypedOp<NoAttributes> op({
      .name = "embedding",
      .summary = "rows of a table, picked by id",
      .infer = infer_embedding,
      .gradient = gradient_embedding,
      .saved = {.inputs = {1}, .outputs = {}},
      .cpu = bind_embedding_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_embedding_cuda),
      .cost = cost_embedding,
      .narrowing = Narrowing::sought,
  });
  return op;
}

const Op& embedding_grad_op() {
  static const TypedOp<EmbeddingGradAttributes> op({
      .name = "embedding_grad",
      .summary = "a table of zeros with rows added at ids, in a fixed order",
      .infer = infer_grad,
      .gradient = gradient_grad,
      .saved = {.inputs = {0}, .outputs = {}},
      .cpu = bind_embedding_grad_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_embedding_grad_cuda),
      .cost = cost_grad,
  });
  return op;
}

Tensor embedding(const Tensor& weight, const Tensor& ids) {
  return apply1(embedding_op(), {weight, ids});
}

}  // namespace ebb
