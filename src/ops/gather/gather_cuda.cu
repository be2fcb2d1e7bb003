// As on the CPU: an index outside the axis reads nothing and writes nothing, and is reported, and
// one thread adds all terms of a line along the axis, in order, so sums are deterministic.
#include "ops/cuda/element.cuh"
#include "ops/cuda/index.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/gather/gather.h"

namespace ebb {
namespace {

using namespace cuda;

template <class T>
__global__ void gather_kernel(AxisBlocks x, std::int64_t count, const T* from, Indices index, T* to,
                              FaultSlot fault) {
  for_items(x.outer * count * x.inner, [&](std::int64_t item) {
    const std::int64_t row = quotient(item, x.inner), k = item - row * x.inner;
    const std::int64_t i = index[item];
    const bool inside = i >= 0 && i < x.axis;
    to[item] = inside ? from[(quotient(row, count) * x.axis + i) * x.inner + k] : T{};
    if (!inside) fault.out_of_range(item, i, x.axis);
  });
}

template <class T>
__global__ void scatter_add_kernel(AxisBlocks x, std::int64_t count, Indices index, const T* source,
                                   T* to, FaultSlot fault) {
  for_items(x.outer * x.inner, [&](std::int64_t line) {
    const std::int64_t outer = quotient(line, x.inner), k = line - outer * x.inner;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t at = (outer * count + j) * x.inner + k, i = index[at];
      if (i < 0 || i >= x.axis) {
        fault.out_of_range(at, i, x.axis);
        continue;
      }
      T& cell = to[(outer * x.axis + i) * x.inner + k];
      cell = narrow<T>(static_cast<Compute<T>>(widen(cell) + widen(source[at])));
    }
  });
}

}  // namespace

Kernel bind_gather_cuda(const KernelRequest& request, const GatherAttributes& a) {
  return dispatch_size(request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[x = AxisBlocks(request.in(0).shape(), a.axis), index = index_dtype(request, 1),
                   count = request.in(1).shape()[a.axis]](const KernelArgs& args) {
      launch({args, "gather", item_grid(x.outer * count * x.inner), dim3(item_threads)},
             gather_kernel<T>, x, count, args.in<T>(0), Indices(args.inputs[1], index),
             args.out<T>(), FaultSlot(args));
    }};
  });
}

Kernel bind_scatter_add_cuda(const KernelRequest& request, const GatherAttributes& a) {
  return dispatch_numeric(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[x = AxisBlocks(request.in(0).shape(), a.axis), index = index_dtype(request, 1),
                   count = request.in(1).shape()[a.axis],
                   bytes = request.out().type.bytes()](const KernelArgs& args) {
      if (args.inputs[0] != args.outputs[0])
        EBB_CUDA_CHECK(cudaMemcpyAsync(args.outputs[0], args.inputs[0],
                                       static_cast<std::size_t>(bytes.count),
                                       cudaMemcpyDeviceToDevice, stream_of(args)));
      launch({args, "scatter_add", item_grid(x.outer * x.inner), dim3(item_threads)},
             scatter_add_kernel<T>, x, count, Indices(args.inputs[1], index), args.in<T>(2),
             args.out<T>(), FaultSlot(args));
    }};
  });
}

}  // namespace ebb
