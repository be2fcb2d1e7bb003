#include "ops/fused_reduce/fused_reduce.h"

#include <fmt/core.h>

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

// The number of contiguous elements that are worth a tile of their own on the CPU.
constexpr std::int64_t shortest_piece = 256;
// A GPU reduces each result, or several neighbouring ones, with a warp. With fewer elements most
// threads would be idle, while a separate elementwise kernel uses all of them. For very few
// elements, saving one launch matters more.
constexpr std::int64_t shortest_rows = 128, fewest_columns = 64, few_elements = 1 << 16;

std::vector<TensorType> infer(const Call& call, const FusedReduceAttributes& a) {
  (void)fused_op().infer(call, a.program);
  if (a.shape.elements() != a.program.shape.elements())
    call.fail_shape(fmt::format("what has the shape {} cannot be reduced as {}",
                                to_string(a.program.shape), to_string(a.shape)));
  const TensorType evaluated[] = {a.evaluated()};
  return reduce_op(a.kind).infer({reduce_op(a.kind), evaluated, call.device, call.path}, a.reduce);
}

std::vector<Tensor> reference(std::span<const Tensor> inputs, const FusedReduceAttributes& a) {
  const Tensor evaluated = fused_op().reference(inputs, a.program)[0];
  return {apply1(reduce_op(a.kind), {reshape(evaluated, a.shape)}, a.reduce)};
}

// The work of both ops. Only the operands of the functions and the results of the reduction are
// moved.
Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const FusedReduceAttributes& a) {
  const TensorType evaluated[] = {a.evaluated()};
  Cost cost = reduce_op(a.kind).cost(evaluated, outputs, a.reduce);
  cost.flops += fused_op().cost(inputs, evaluated, a.program).flops;
  cost.moved = default_cost(inputs, outputs).moved;
  return cost;
}

}  // namespace

const Op& fused_reduce_op() {
  static const TypedOp<FusedReduceAttributes> op({
      .name = "fused_reduce",
      .summary = "a reduction of what elementwise functions compute, which is never written",
      .infer = infer,
      .reference = reference,
      .accepts = [](const Arg&, int, const FusedReduceAttributes&) { return true; },
      .cpu = bind_fused_reduce,
      .cuda = EBB_CUDA_KERNEL(bind_fused_reduce_cuda),
      .cost = cost,
  });
  return op;
}

bool gains_by_evaluating(const Shape& shape, const Axes& axes, Device device) {
  if (shape.elements() == 0) return false;
  const ReduceGeometry g({{shape, f32}, contiguous_strides(shape)}, axes);
  if (device.kind == Device::Kind::cuda)
    return shape.elements() <= few_elements ||
           (g.inner_reduced ? g.length >= shortest_rows : g.inner >= fewest_columns);
  return g.in_order() || g.inner >= shortest_piece;
}

}  // namespace ebb
