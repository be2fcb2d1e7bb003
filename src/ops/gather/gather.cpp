// gather and scatter_add: each is the other's gradient.
#include "ops/gather/gather.h"

#include <fmt/core.h>

#include <cstring>

#include "core/parallel.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

// `index` must have the sizes of the tensor it points into, except along the axis.
void check_index(const Call& call, int tensor, int index, int axis) {
  call.require_index(index);
  call.require_rank(index, call.shape(tensor).rank());
  for (int i = 0; i < call.shape(tensor).rank(); ++i)
    if (i != axis && call.shape(index)[i] != call.shape(tensor)[i])
      call.fail_shape(fmt::format(
          "the index may differ from the tensor only along axis {}, but differs along {}", axis,
          i));
}

std::vector<TensorType> infer_gather(const Call& call, const GatherAttributes& a) {
  const int axis = call.axis(a.axis, call.shape(0).rank());
  check_index(call, 0, 1, axis);
  return {{call.shape(1), call.dtype(0)}};
}

std::vector<TensorType> infer_scatter(const Call& call, const GatherAttributes& a) {
  const int axis = call.axis(a.axis, call.shape(0).rank());
  check_index(call, 0, 1, axis);
  call.require_same_dtype(0, 2);
  if (call.dtype(0) == b8) call.fail_dtype("booleans cannot be added");
  if (call.shape(1) != call.shape(2)) call.fail_shape("index and source must have the same shape");
  return {call.inputs[0]};
}

std::vector<Tensor> gather_gradient(const GradientCall& call, const GatherAttributes& a) {
  const Tensor empty =
      zeros(call.input_type(0).shape, call.input_type(0).dtype, call.input(1).device());
  return {scatter_add(empty, a.axis, call.input(1), call.grad()), Tensor{}};
}

std::vector<Tensor> scatter_gradient(const GradientCall& call, const GatherAttributes& a) {
  return {call.grad(), Tensor{},
          call.needs(2) ? gather(call.grad(), a.axis, call.input(1)) : Tensor{}};
}

// An index outside the axis reads nothing and writes nothing, and is reported.
template <class T, class I>
void run_gather(const KernelArgs& args, const AxisBlocks& x, std::int64_t count) {
  const T* from = args.in<T>(0);
  const I* index = args.in<I>(1);
  T* to = args.out<T>();
  parallel_for(x.outer * count, std::max<std::int64_t>(1, 8192 / x.inner),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   const T* base = from + row / count * x.axis * x.inner;
                   for (std::int64_t k = 0; k < x.inner; ++k) {
                     const std::int64_t i = index[row * x.inner + k];
                     const bool inside = i >= 0 && i < x.axis;
                     to[row * x.inner + k] = inside ? base[i * x.inner + k] : T{};
                     if (!inside) args.fault->out_of_range(row * x.inner + k, i, x.axis);
                   }
                 }
               });
}

// Each thread processes a range of (outer, inner) lines and adds along the axis in order, so sums
// are deterministic.
template <class T, class I>
void run_scatter(const KernelArgs& args, const AxisBlocks& x, std::int64_t count) {
  const I* index = args.in<I>(1);
  const T* source = args.in<T>(2);
  T* to = args.out<T>();
  if (args.inputs[0] != args.outputs[0])
    std::memcpy(to, args.in<T>(0),
                static_cast<std::size_t>(x.outer * x.axis * x.inner) * sizeof(T));
  parallel_for(
      x.outer * x.inner, std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(count, 1)),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; ++line) {
          const std::int64_t outer = line / x.inner, k = line % x.inner;
          for (std::int64_t j = 0; j < count; ++j) {
            const std::int64_t at = (outer * count + j) * x.inner + k, i = index[at];
            if (i < 0 || i >= x.axis) {
              args.fault->out_of_range(at, i, x.axis);
              continue;
            }
            T& cell = to[(outer * x.axis + i) * x.inner + k];
            cell =
                static_cast<T>(static_cast<Compute<T>>(cell) + static_cast<Compute<T>>(source[at]));
          }
        }
      });
}

Kernel bind_gather(const KernelRequest& request, const GatherAttributes& a) {
  return dispatch_index(request, request.in(1).dtype(), [&](auto index) {
    return dispatch_size(request.out().dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      using I = typename decltype(index)::type;
      return Kernel{[x = AxisBlocks(request.in(0).shape(), a.axis),
                     count = request.in(1).shape()[a.axis]](const KernelArgs& args) {
        run_gather<T, I>(args, x, count);
      }};
    });
  });
}

Kernel bind_scatter(const KernelRequest& request, const GatherAttributes& a) {
  return dispatch_index(request, request.in(1).dtype(), [&](auto index) {
    return dispatch_numeric(request, request.out().dtype(), [&](auto element) {
      using T = typename decltype(element)::type;
      using I = typename decltype(index)::type;
      return Kernel{[x = AxisBlocks(request.in(0).shape(), a.axis),
                     count = request.in(1).shape()[a.axis]](const KernelArgs& args) {
        run_scatter<T, I>(args, x, count);
      }};
    });
  });
}

}  // namespace

const Op& gather_op() {
  static const TypedOp<GatherAttributes> op({
      .name = "gather",
      .summary = "elements picked along an axis",
      .infer = infer_gather,
      .gradient = gather_gradient,
      .saved = {.inputs = {1}, .outputs = {}},
      .cpu = bind_gather,
      .cuda = EBB_CUDA_KERNEL(bind_gather_cuda),
  });
  return op;
}

const Op& scatter_add_op() {
  static const TypedOp<GatherAttributes> op({
      .name = "scatter_add",
      .summary = "adds elements at picked places along an axis, in a fixed order",
      .infer = infer_scatter,
      .gradient = scatter_gradient,
      .saved = {.inputs = {1}, .outputs = {}},
      .in_place = {{.output = 0, .input = 0}},
      .cpu = bind_scatter,
      .cuda = EBB_CUDA_KERNEL(bind_scatter_add_cuda),
  });
  return op;
}

Tensor gather(const Tensor& x, int axis, const Tensor& index) {
  return apply1(gather_op(), {x, index}, GatherAttributes{wrap_axis(gather_op(), x, axis)});
}

Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source) {
  return apply1(scatter_add_op(), {x, index, source},
                GatherAttributes{wrap_axis(scatter_add_op(), x, axis)});
}

Tensor one_hot(const Tensor& index, std::int64_t classes, DType dtype) {
  const DType added = dtype == b8 ? u8 : dtype;
  Shape shape = index.shape(), one = index.shape();
  shape.push_back(classes), one.push_back(1);
  const Tensor none = zeros(shape, added, index.device());
  return cast(scatter_add(none, -1, unsqueeze(index, -1), ones(one, added, index.device())), dtype);
}

}  // namespace ebb
