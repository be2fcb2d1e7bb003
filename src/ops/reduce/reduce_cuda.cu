// How reductions are cut into blocks and slices; reduce_kernels.cuh has the kernels.
#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/dispatch.h"
#include "ops/reduce/layout_cuda.h"

namespace ebb {
namespace {

using namespace cuda;

constexpr std::int64_t wanted_blocks = 528;    // four for each of an H200's multiprocessors
constexpr std::int64_t least_elements = 2048;  // of a slice of a result

}  // namespace

CudaReduction::CudaReduction(const Arg& in, const Axes& axes) {
  const ReduceGeometry g(in, axes);
  p.kept = AxisSteps(g.kept.shape, g.kept.strides);
  p.reduced = AxisSteps(g.reduced.shape, g.reduced.strides);
  p.inner = std::max<std::int64_t>(g.inner, 1), p.stride = g.stride;
  p.results = g.results, p.length = g.length;
  inner_reduced = g.inner_reduced;
  warps = p.length <= 1024;
  const std::int64_t size = size_of(in.dtype()).count, widest = 16 / size;
  bool packs = is_floating(in.dtype()) && size <= 4 && g.stride == 1 && g.inner % widest == 0;
  for (const AxisList* list : {&g.kept, &g.reduced})
    for (std::int64_t stride : list->strides) packs &= stride % widest == 0;
  width = packs ? static_cast<int>(widest) : 1;
  const std::int64_t units = inner_reduced ? (warps ? ceil_div(p.results, 8) : p.results)
                                           : ceil_div(p.inner, 32 * width) * (p.results / p.inner);
  const std::int64_t most = p.length / (inner_reduced ? least_elements : fold::round_rows);
  p.slices = std::clamp<std::int64_t>(wanted_blocks / std::max<std::int64_t>(units, 1), 1,
                                      std::clamp<std::int64_t>(most, 1, 1024));
}

dim3 CudaReduction::grid(int elements_of_a_slot) const {
  const std::int64_t tasks = p.results * p.slices;
  if (inner_reduced) return dim3(static_cast<unsigned>(warps ? ceil_div(tasks, 8) : tasks));
  return dim3(static_cast<unsigned>(ceil_div(p.inner, 32 * elements_of_a_slot)),
              static_cast<unsigned>(std::min<std::int64_t>(p.results / p.inner, 65535)),
              static_cast<unsigned>(p.slices));
}

Bytes CudaReduction::partials(ReduceKind kind, DType dtype) const {
  const bool extreme = kind == ReduceKind::max || kind == ReduceKind::min;
  const Bytes wide = extreme ? size_of(compute_dtype(dtype)) : Bytes{8};
  return (p.slices == 1 ? 0 : p.slices * p.results) * wide;
}

JoinSlices join_slices(ReduceKind kind, DType dtype) {
  switch (kind) {
    case ReduceKind::sum:
      return join_sum(dtype);
    case ReduceKind::sum_squares:
      return join_sum_squares(dtype);
    case ReduceKind::max:
      return join_max(dtype);
    case ReduceKind::min:
      break;
  }
  return join_min(dtype);
}

}  // namespace ebb
