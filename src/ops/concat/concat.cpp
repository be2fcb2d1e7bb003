#include "ops/concat/concat.h"

#include <fmt/format.h>

#include <cstring>

#include "core/parallel.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb {
namespace {

struct ConcatAttributes {
  int axis = 0;
  bool operator==(const ConcatAttributes&) const = default;
  void visit(auto&& field) const { field("axis", axis); }
};

std::vector<TensorType> infer(const Call& call, const ConcatAttributes& a) {
  const int axis = call.axis(a.axis, call.shape(0).rank());
  Shape shape = call.shape(0);
  for (int i = 1; i < call.count(); ++i) {
    call.require_same_dtype(0, i);
    call.require_rank(i, shape.rank());
    for (int k = 0; k < shape.rank(); ++k)
      if (k != axis && call.shape(i)[k] != shape[k])
        call.fail_shape(fmt::format(
            "parts may differ only along axis {}, but part {} differs along axis {}", axis, i, k));
    shape[axis] += call.shape(i)[axis];
  }
  return {{shape, call.dtype(0)}};
}

std::vector<Tensor> gradient(const GradientCall& call, const ConcatAttributes& a) {
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < call.input_count(); ++i) sizes.push_back(call.input_type(i).shape[a.axis]);
  return split(call.grad(), a.axis, sizes);
}

// Each part is `outer` blocks of its own length, laid side by side in the result's blocks.
Kernel bind_cpu(const KernelRequest& request, const ConcatAttributes& a) {
  const std::int64_t element = size_of(request.out().dtype()).count;
  std::int64_t outer = 1;
  for (int i = 0; i < a.axis; ++i) outer *= request.out().shape()[i];
  std::vector<std::int64_t> blocks;  // bytes of each part per outer index
  for (const Arg& part : request.inputs)
    blocks.push_back(part.shape().elements() / std::max<std::int64_t>(outer, 1) * element);
  return {[outer, blocks](const KernelArgs& args) {
    std::int64_t stride = 0;
    for (std::int64_t block : blocks) stride += block;
    parallel_for(outer, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(stride, 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     std::byte* to = args.outputs[0] + row * stride;
                     for (std::size_t i = 0; i < blocks.size(); ++i) {
                       std::memcpy(to, args.inputs[i] + row * blocks[i],
                                   static_cast<std::size_t>(blocks[i]));
                       to += blocks[i];
                     }
                   }
                 });
  }};
}

}  // namespace

const Op& concat_op() {
  static const TypedOp<ConcatAttributes> op({
      .name = "concat",
      .summary = "tensors side by side along an axis",
      .infer = infer,
      .gradient = gradient,
      .cpu = bind_cpu,
  });
  return op;
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  if (parts.empty()) throw ValueError("[concat] needs at least one tensor, but none came");
  const int a = wrap_axis(concat_op(), parts.front(), axis);
  return parts.size() == 1 ? parts.front() : apply1(concat_op(), parts, ConcatAttributes{a});
}

Tensor stack(const std::vector<Tensor>& parts, int axis) {
  std::vector<Tensor> raised;
  for (const Tensor& part : parts) raised.push_back(unsqueeze(part, axis));
  return concat(raised, axis);
}

}  // namespace ebb
