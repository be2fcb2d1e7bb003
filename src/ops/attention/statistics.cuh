// What backward's warpgroup kernels need of every query beside its row: computed once, read by
// both.
#pragma once

#include "ops/attention/wgmma_blocks.cuh"

namespace ebb::attention {

// For tiles of 64 queries: the logsumexp times log2(e), +inf for queries that see no key or do not
// exist, and o · do times dropout's keep probability. The tiles of a head are consecutive.
//
// Dropout's scale factor is applied only to the results: with m the mask, ds = keep · weights · (m
// · (do · vᵀ) - share · δ).
struct Statistics {
  float saved[64], delta[64];
};

// Eight lanes for each query.
template <class S>
__global__ void __launch_bounds__(256)
    statistics_kernel(const __grid_constant__ CudaProblem p, BackwardArgs<S> a) {
  const int tiles = (p.queries + 63) / 64;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x / 8;
  const std::int64_t head = row / (tiles * 64);
  const int i = static_cast<int>(row - head * tiles * 64),
            piece = static_cast<int>(threadIdx.x) % 8;
  const int b = static_cast<int>(head / p.heads), h = static_cast<int>(head % p.heads);
  float sum = 0.0f;
  for (int column = piece * 8; i < p.queries && column < p.value_size; column += 64) {
    float o[8], grad[8];
    load_pack(a.o + p.o.at(b, h) + i * p.o.row + column, o);
    load_pack(a.grad + p.grad.at(b, h) + i * p.grad.row + column, grad);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += o[e] * grad[e];
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (piece != 0) return;
  Statistics& to = reinterpret_cast<Statistics*>(a.delta)[head * tiles + i / 64];
  to.saved[i % 64] =
      i < p.queries ? saved_base(a.logsumexp[head * p.queries + i]) : infinity<float>();
  to.delta[i % 64] = sum * static_cast<float>(p.dropout.share);
}

template <class S>
void run_statistics(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a) {
  const std::int64_t rows = ceil_div(p.queries, 64) * 64 * p.batches * p.heads;
  launch({args, "attention_grad", dim3(static_cast<unsigned>(rows / 32)), dim3(256)},
         statistics_kernel<S>, p, a);
}

}  // namespace ebb::attention
