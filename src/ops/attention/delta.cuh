// What backward needs of every query beside its row: δ = o · do, computed once.
#pragma once

#include "ops/attention/problem.cuh"

namespace ebb::attention {

// A warp for each query.
template <class S>
__global__ void delta_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  using T = Compute<S>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const std::int64_t all = static_cast<std::int64_t>(p.batches) * p.heads * p.queries;
  if (row >= all) return;
  const std::int64_t head = row / p.queries, i = row - head * p.queries;
  const int b = static_cast<int>(head / p.heads), h = static_cast<int>(head % p.heads);
  const S *o = a.o + p.o.at(b, h) + i * p.o.row, *grad = a.grad + p.grad.at(b, h) + i * p.grad.row;
  T sum = T(0);
  for (int d = static_cast<int>(threadIdx.x) % 32; d < p.value_size; d += 32)
    sum += cuda::widen(o[d]) * cuda::widen(grad[d]);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) a.delta[row] = sum;
}

template <class S>
void run_delta(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const std::int64_t rows = static_cast<std::int64_t>(p.batches) * p.heads * p.queries;
  cuda::launch(
      {args, "attention_grad", dim3(static_cast<unsigned>(cuda::ceil_div(rows, 8))), dim3(256)},
      delta_kernel<S>, p, a);
}

}  // namespace ebb::attention
