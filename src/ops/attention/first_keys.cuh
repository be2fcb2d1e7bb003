// Masks that give the first key of each query (a sliding window, packed texts): kernels skip the
// tiles that nobody sees and compare scores only in tiles that some query sees in part. For that,
// a kernel before theirs finds the bounds of the first keys of every 64 queries.
#pragma once

#include "ops/attention/problem.cuh"

namespace ebb::attention {

// A warp for each 64 queries of each batch of the mask.
template <class Key>
__global__ void first_key_bounds_kernel(const __grid_constant__ CudaProblem p, const Key* mask,
                                        int2* bounds) {
  const int first = static_cast<int>(blockIdx.x) * 64, lane = static_cast<int>(threadIdx.x);
  const Key* of_batch = mask + blockIdx.y * p.mask_stride[0];
  int least = 0x7fffffff, greatest = -0x7fffffff;
  for (int i = first + lane; i < min(first + 64, p.queries); i += 32) {
    const int key = of_batch[i * p.mask_stride[2]];
    least = min(least, key), greatest = max(greatest, key);
  }
  least = __reduce_min_sync(0xffffffffu, least);
  greatest = __reduce_max_sync(0xffffffffu, greatest);
  if (lane == 0) bounds[blockIdx.y * gridDim.x + blockIdx.x] = make_int2(least, greatest);
}

// Fills args.bounds, if the problem has such a mask.
template <class Args>
void run_first_key_bounds(const KernelArgs& kernel_args, const char* name, const CudaProblem& p,
                          const Args& args) {
  if (!p.first_keys) return;
  cuda::launch(
      {kernel_args, name,
       dim3(static_cast<unsigned>(p.bound_tiles()), static_cast<unsigned>(p.mask_batches())),
       dim3(32)},
      first_key_bounds_kernel<std::int32_t>, p, static_cast<const std::int32_t*>(args.mask),
      const_cast<int2*>(args.bounds));
}

// The bounds of a batch. Plain: every query sees the first key.
template <bool plain>
struct FirstKeys {
  const int2* tiles = nullptr;  // null: every query sees the first key

  __device__ FirstKeys(const CudaProblem& p, const int2* bounds, int b) {
    if (!plain && p.first_keys)
      tiles = bounds + (p.mask_stride[0] == 0 ? 0 : b) * ((p.queries + 63) / 64);
  }

  // The first key that some query of [begin, end) sees, rounded down to a multiple of `step`, at
  // most the last such multiple that `begin` sees; begin is a multiple of 64 and below end.
  __device__ int first_key(const CudaProblem& p, int begin, int end, int step) const {
    if (plain || !tiles) return 0;
    int least = tiles[begin / 64].x;
    for (int tile = begin / 64 + 1; tile * 64 < end; ++tile) least = min(least, tiles[tile].x);
    return min(max(least, 0), max(p.visible_keys(begin + 1) - 1, 0)) / step * step;
  }
  // Whether all queries of i's 64 see keys from j on, as far as this mask goes.
  __device__ bool sees(int i, int j) const { return plain || !tiles || tiles[i / 64].y <= j; }
  // By whole warps: the end of the queries that see some key up to `last`, a multiple of 64 or
  // their number.
  __device__ int end_query(const CudaProblem& p, int last) const {
    if (plain || !tiles) return p.queries;
    int end = 0;
    for (int tile = static_cast<int>(threadIdx.x) % 32; tile * 64 < p.queries; tile += 32)
      if (tiles[tile].x <= last) end = tile * 64 + 64;
    return min(__reduce_max_sync(0xffffffffu, end), p.queries);
  }
};

}  // namespace ebb::attention
