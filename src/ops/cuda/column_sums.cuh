// Adds the partial sums of slices in order: the second phase of sums over rows.
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb::cuda {

// Destinations of sums, if each slice has several, one after another.
template <class S>
struct JoinedSums {
  static constexpr int most = 3;
  S* out[most];
  int count;
};

// out[k][j] = Σ over slices s of partial[(s · count + k) · columns + j]: 32 columns of a sum a
// block, whose 8 warps take every eighth slice each.
template <class S, class T>
__global__ void join_slices_kernel(const T* partial, std::int64_t slices, JoinedSums<S> sums,
                                   std::int64_t columns) {
  __shared__ double parts[8][32];
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const std::int64_t stride = sums.count * columns;
  double total = 0.0;
  if (j < columns) {
    const T* from = partial + blockIdx.y * columns + j;
#pragma unroll 8
    for (std::int64_t s = threadIdx.y; s < slices; s += 8)
      total += static_cast<double>(from[s * stride]);
  }
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  for (int k = 1; k < 8; ++k) total += parts[k][threadIdx.x];
  sums.out[blockIdx.y][j] = narrow<S>(static_cast<Compute<S>>(total));
}

template <class S, class T>
void join_slices(const KernelArgs& args, const T* partial, std::int64_t slices,
                 const JoinedSums<S>& sums, std::int64_t columns) {
  launch({args, "join_slices",
          dim3(static_cast<unsigned>(ceil_div(columns, 32)), static_cast<unsigned>(sums.count)),
          dim3(32, 8)},
         join_slices_kernel<S, T>, partial, slices, sums, columns);
}

}  // namespace ebb::cuda
