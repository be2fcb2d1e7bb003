#include "ops/concat/concat.h"

#include <fmt/core.h>

#include <cstring>

#include "core/parallel.h"
#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

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

Kernel bind_cpu(const KernelRequest& request, const ConcatAttributes& a) {
  const ConcatBlocks blocks(request, a);
  return {[outer = blocks.outer, stride = blocks.stride,
           blocks = blocks.parts](const KernelArgs& args) {
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
      .cuda = EBB_CUDA_KERNEL(bind_concat_cuda),
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
