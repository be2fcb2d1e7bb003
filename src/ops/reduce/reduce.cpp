// sum, sum_squares, max and min over any set of axes.
#include "ops/reduce/reduce.h"

#include <fmt/core.h>

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/dispatch.h"
#include "ops/group/group.h"
#include "ops/row_axis.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const ReduceAttributes& a) {
  if (call.dtype(0) == b8) call.fail_dtype("booleans cannot be reduced; cast() them first");
  Shape shape;
  for (int i = 0; i < call.shape(0).rank(); ++i) {
    if (!a.axes.contains(i))
      shape.push_back(call.shape(0)[i]);
    else if (a.keep)
      shape.push_back(1);
  }
  for (std::int64_t axis : a.axes) call.axis(axis, call.shape(0).rank());
  const ReduceKind kind = *reduce_kind(call.op);
  if (kind == ReduceKind::max || kind == ReduceKind::min)
    for (std::int64_t axis : a.axes)
      if (call.shape(0)[static_cast<int>(axis)] == 0 && shape.elements() > 0)
        call.fail_shape("has no value over no elements");
  return {{shape, reduced_dtype(kind, call.dtype(0))}};
}

// The gradient or output of a reduction, stretched back over the reduced axes.
Tensor stretched(const Tensor& reduced, const GradientCall& call, const ReduceAttributes& a) {
  Shape kept = call.input_type(0).shape;
  for (std::int64_t axis : a.axes) kept[static_cast<int>(axis)] = 1;
  return expand(reshape(reduced, kept), call.input_type(0).shape);
}

std::vector<Tensor> sum_gradient(const GradientCall& call, const ReduceAttributes& a) {
  return {stretched(call.grad(), call, a)};
}

std::vector<Tensor> sum_squares_gradient(const GradientCall& call, const ReduceAttributes& a) {
  const Tensor& x = call.input(0);
  return {cast(stretched(call.grad(), call, a) * cast(x, call.grad().dtype()) * 2.0, x.dtype())};
}

// Equal extremes share the gradient.
std::vector<Tensor> extremum_gradient(const GradientCall& call, const ReduceAttributes& a) {
  const Tensor x = call.input(0);
  const Tensor hit = cast(equal(x, stretched(call.output(0), call, a)), x.dtype());
  const Tensor share = call.grad() / sum(hit, a.axes, a.keep ? Keep::yes : Keep::no);
  return {hit * stretched(share, call, a)};
}

// A group is of whole tensors that lie without gaps, whatever their shapes.
std::optional<Attributes> whole(std::span<const Arg> inputs, const Attributes& attributes) {
  const bool whole = attributes.as<ReduceAttributes>().axes.size() == inputs[0].shape().rank();
  if (!whole || !inputs[0].contiguous() || !is_floating(inputs[0].dtype())) return {};
  return NoAttributes{};
}

OpSpec<ReduceAttributes> reduction(std::string_view name, std::string_view summary) {
  OpSpec<ReduceAttributes> spec{.name = name, .summary = summary};
  spec.infer = infer;
  spec.accepts = [](const Arg&, int, const ReduceAttributes&) { return true; };
  // Reducing rows has a fixed cost per result; reducing columns adds whole vectors.
  spec.cost = [](std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                 const ReduceAttributes& a) {
    const bool along_rows = a.axes.contains(inputs[0].shape.rank() - 1);
    Cost cost = default_cost(inputs, outputs, along_rows ? 650.0 : 1.0);
    cost.flops += static_cast<double>(inputs[0].shape.elements());
    return cost;
  };
  return spec;
}

Tensor reduce(const Op& op, const Tensor& x, const Axes& axes, Keep keep) {
  return apply1(op, {x}, ReduceAttributes{axes_of(op, x, axes), keep == Keep::yes});
}

std::int64_t reduced_elements(const Tensor& x, const Tensor& result) {
  return x.shape().elements() / std::max<std::int64_t>(result.shape().elements(), 1);
}

}  // namespace

const Op& sum_op() {
  static const TypedOp<ReduceAttributes> op([] {
    auto spec = reduction("sum", "the sum over axes");
    spec.narrowing = Narrowing::refused;
    spec.gradient = sum_gradient, spec.cpu = bind_sum, spec.cuda = EBB_CUDA_KERNEL(bind_sum_cuda);
    return spec;
  }());
  return op;
}
const Op& sum_squares_op() {
  static const TypedOp<ReduceAttributes> op([] {
    auto spec = reduction("sum_squares", "the sum of squares over axes");
    spec.narrowing = Narrowing::refused;
    spec.gradient = sum_squares_gradient, spec.saved = {.inputs = {0}, .outputs = {}},
    spec.cpu = bind_sum_squares, spec.cuda = EBB_CUDA_KERNEL(bind_sum_squares_cuda);
    spec.group = sum_squares_group_op;
    return spec;
  }());
  return op;
}
const GroupOp& sum_squares_group_op() {
  static const GroupOp op({
      .name = "sum_squares_group",
      .summary = "sums of squares of several small tensors",
      .member = sum_squares_op,
      .in_common = whole,
      .cuda = EBB_CUDA_KERNEL(bind_sum_squares_group_cuda),
  });
  return op;
}
const Op& max_op() {
  static const TypedOp<ReduceAttributes> op([] {
    auto spec = reduction("max", "the largest over axes; NaN wins");
    spec.gradient = extremum_gradient, spec.saved = {.inputs = {0}, .outputs = {0}},
    spec.cpu = bind_max, spec.cuda = EBB_CUDA_KERNEL(bind_max_cuda);
    return spec;
  }());
  return op;
}
const Op& min_op() {
  static const TypedOp<ReduceAttributes> op([] {
    auto spec = reduction("min", "the smallest over axes; NaN wins");
    spec.gradient = extremum_gradient, spec.saved = {.inputs = {0}, .outputs = {0}},
    spec.cpu = bind_min, spec.cuda = EBB_CUDA_KERNEL(bind_min_cuda);
    return spec;
  }());
  return op;
}

const Op& reduce_op(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::sum:
      return sum_op();
    case ReduceKind::sum_squares:
      return sum_squares_op();
    case ReduceKind::max:
      return max_op();
    case ReduceKind::min:
      break;
  }
  return min_op();
}
DType reduced_dtype(ReduceKind kind, DType dtype) {
  if (kind == ReduceKind::max || kind == ReduceKind::min) return dtype;
  if (is_integer(dtype)) return i64;
  // Squares of half types exceed their range, and their sum exceeds their precision.
  return kind == ReduceKind::sum_squares ? compute_dtype(dtype) : dtype;
}
std::optional<ReduceKind> reduce_kind(const Op& op) {
  for (ReduceKind kind :
       {ReduceKind::sum, ReduceKind::sum_squares, ReduceKind::max, ReduceKind::min})
    if (&reduce_op(kind) == &op) return kind;
  return {};
}

Tensor sum(const Tensor& x, const Axes& axes, Keep keep) { return reduce(sum_op(), x, axes, keep); }
Tensor sum_squares(const Tensor& x, const Axes& axes, Keep keep) {
  return reduce(sum_squares_op(), x, axes, keep);
}
Tensor max(const Tensor& x, const Axes& axes, Keep keep) { return reduce(max_op(), x, axes, keep); }
Tensor min(const Tensor& x, const Axes& axes, Keep keep) { return reduce(min_op(), x, axes, keep); }

Tensor mean(const Tensor& x, const Axes& axes, Keep keep) {
  if (x && !is_floating(x.dtype()))
    call_on(sum_op(), x)
        .fail_dtype(fmt::format("the mean of {} is no {}; cast() the tensor to a floating dtype "
                                "first",
                                name(x.dtype()), name(x.dtype())));
  // A sum that float16 cannot hold may have a mean that it can.
  const Tensor total = sum(cast(x, compute_dtype(x.dtype())), axes, keep);
  return cast(total * (1.0 / static_cast<double>(reduced_elements(x, total))), x.dtype());
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int lead = x.rank() - shape.rank();
  Axes axes;
  for (int i = 0; i < x.rank(); ++i)
    if (i < lead || (shape[i - lead] == 1 && x.shape()[i] != 1)) axes.push_back(i);
  return reshape(axes.empty() ? x : sum(x, axes), shape);
}

}  // namespace ebb
