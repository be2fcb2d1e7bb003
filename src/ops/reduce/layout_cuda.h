// Host code shared by reductions of memory and of evaluated elements on a GPU: the division into
// blocks, and the kernel that combines slices.
#pragma once

#include <algorithm>

#include "ops/reduce/fold.cuh"
#include "ops/reduce/geometry.h"

namespace ebb {

struct CudaReduction {
  cuda::fold::Problem p;
  bool inner_reduced = true;
  bool warps = true;  // where the innermost axis is reduced: a warp for each result, or a block
  int width = 1;      // of packs, if elements lie in whole ones, aligned ones provided

  CudaReduction(const Arg& in, const Axes& axes);

  dim3 grid(int elements_of_a_slot) const;
  dim3 block() const { return inner_reduced ? dim3(256) : dim3(32, 8); }
  // (slices, results) numbers of the kind that sums are joined in; none without slices.
  Bytes partials(ReduceKind kind, DType dtype) const;
};

// Joins the slices of results of elements of a dtype.
using JoinSlices = void (*)(const KernelArgs&, const CudaReduction&, const void* partial);
JoinSlices join_slices(ReduceKind kind, DType dtype);

// The same for one kind, each beside its kernels.
JoinSlices join_sum(DType dtype);
JoinSlices join_sum_squares(DType dtype);
JoinSlices join_max(DType dtype);
JoinSlices join_min(DType dtype);

}  // namespace ebb
