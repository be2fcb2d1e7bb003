// Sums of slices, joined in order: the second half of every reduction that is cut into slices.
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb::cuda {

// out[j] = Σ over slices s of partial[s · stride + j]: 32 columns a block, whose 8 warps take every
// eighth slice each.
template <class S, class T>
__global__ void join_slices_kernel(const T* partial, std::int64_t slices, std::int64_t stride,
                                   S* out, std::int64_t columns) {
  __shared__ double parts[8][32];
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  double total = 0.0;
  if (j < columns)
    for (std::int64_t s = threadIdx.y; s < slices; s += 8)
      total += static_cast<double>(partial[s * stride + j]);
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  for (int k = 1; k < 8; ++k) total += parts[k][threadIdx.x];
  out[j] = narrow<S>(static_cast<Compute<S>>(total));
}

template <class S, class T>
void join_slices(const KernelArgs& args, const T* partial, std::int64_t slices, std::int64_t stride,
                 S* out, std::int64_t columns) {
  launch({args, "join_slices", dim3(static_cast<unsigned>(ceil_div(columns, 32))), dim3(32, 8)},
         join_slices_kernel<S, T>, partial, slices, stride, out, columns);
}

}  // namespace ebb::cuda
