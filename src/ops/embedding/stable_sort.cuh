// A stable radix sort of ids: eight bits per pass, lowest first. The result depends only on the
// ids.
//
// A pass has three kernels. `count_digits` counts each block's ids by digit; a scan over (digit,
// block) gives the start of each block's ids with each digit; `scatter` places them by their rank
// among the ids of the block with the same digit: earlier warps first, then earlier rounds of the
// warp, then lower lanes of the round.
#pragma once

#include "ebb/storage.h"
#include "ops/cuda/group.cuh"
#include "ops/cuda/index.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb::cuda {

namespace sorting {

constexpr int threads = 256, warps = threads / 32, rounds = 8;
constexpr int block_ids = threads * rounds;
constexpr int digits = 256;

struct Pairs {
  std::uint32_t *keys, *positions;
};

// Ids outside the table become `rows`, which sorts last, and are reported.
static __global__ void load_ids(Indices ids, std::int64_t count, std::int64_t rows, Pairs to,
                                FaultSlot fault) {
  for_items(count, [&](std::int64_t n) {
    std::int64_t id = ids[n];
    if (id < 0 || id >= rows) {
      fault.out_of_range(n, id, rows);
      id = rows;
    }
    to.keys[n] = static_cast<std::uint32_t>(id);
    to.positions[n] = static_cast<std::uint32_t>(n);
  });
}

static __global__ void __launch_bounds__(threads)
    count_digits(const std::uint32_t* keys, std::int64_t count, int shift, std::uint32_t* counts) {
  __shared__ std::uint32_t own[digits];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int r = 0; r < rounds; ++r) {
    const std::int64_t n =
        static_cast<std::int64_t>(blockIdx.x) * block_ids + r * threads + threadIdx.x;
    if (n < count) atomicAdd(&own[keys[n] >> shift & (digits - 1)], 1u);
  }
  __syncthreads();
  counts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

// Each number becomes the sum of those before it; one block.
static __global__ void __launch_bounds__(1024) scan(std::uint32_t* values, std::int64_t count) {
  __shared__ std::uint32_t warp_totals[32];
  std::uint32_t before = 0;
  for (std::int64_t first = 0; first < count; first += 1024) {
    const std::int64_t i = first + threadIdx.x;
    const std::uint32_t own = i < count ? values[i] : 0;
    std::uint32_t sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (threadIdx.x % 32 >= static_cast<unsigned>(distance)) sum += other;
    }
    if (threadIdx.x % 32 == 31) warp_totals[threadIdx.x / 32] = sum;
    __syncthreads();
    std::uint32_t earlier = 0, all = 0;
    for (unsigned w = 0; w < 32; ++w) {
      if (w < threadIdx.x / 32) earlier += warp_totals[w];
      all += warp_totals[w];
    }
    if (i < count) values[i] = before + earlier + sum - own;
    before += all;
    __syncthreads();
  }
}

static __global__ void __launch_bounds__(threads)
    scatter(Pairs from, Pairs to, std::int64_t count, int shift, const std::uint32_t* starts) {
  __shared__ std::uint32_t place[warps][digits];  // counts of a warp, then where its ids begin
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int w = 0; w < warps; ++w) place[w][threadIdx.x] = 0;
  __syncthreads();
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * block_ids + warp * (32 * rounds) + lane;
  std::uint32_t key[rounds], rank[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const std::int64_t n = first + r * 32;
    key[r] = n < count ? from.keys[n] : 0;
    // Lanes beyond the end form a group of their own, with a digit that does not exist.
    const unsigned digit = n < count ? key[r] >> shift & (digits - 1) : digits;
    const unsigned same = __match_any_sync(0xffffffffu, digit);
    const unsigned below = same & ((1u << lane) - 1);
    rank[r] = digit < digits ? place[warp][digit] + static_cast<unsigned>(__popc(below)) : 0;
    __syncwarp();
    if (digit < digits && below == 0) place[warp][digit] += static_cast<unsigned>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
  std::uint32_t next = starts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < warps; ++w) {
    const std::uint32_t own = place[w][threadIdx.x];
    place[w][threadIdx.x] = next;
    next += own;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    const std::int64_t n = first + r * 32;
    if (n >= count) continue;
    const std::uint32_t at = place[warp][key[r] >> shift & (digits - 1)] + rank[r];
    to.keys[at] = key[r];
    to.positions[at] = from.positions[n];
  }
}

}  // namespace sorting

// Needs count and rows below 2^32.
class StableSort {
 public:
  StableSort(std::int64_t count, std::int64_t rows) : count_(count), rows_(rows) {
    blocks_ = ceil_div(count, sorting::block_ids);
    for (std::int64_t rest = rows; rest > 0; rest /= sorting::digits) ++passes_;
    list_ = round_up({count * 4}, buffer_alignment);
    workspace_ = 4 * list_ + round_up({blocks_ * sorting::digits * 4}, buffer_alignment);
  }
  Bytes workspace() const { return workspace_; }

  // Keys (ids) and positions in order, in the workspace that begins at `at`.
  sorting::Pairs run(const KernelArgs& args, Indices ids, Bytes at) const {
    const auto list = [&](std::int64_t i) { return args.scratch<std::uint32_t>(at + i * list_); };
    sorting::Pairs from{list(0), list(1)}, to{list(2), list(3)};
    std::uint32_t* counts = list(4);
    launch({args, "sort ids", item_grid(count_), dim3(item_threads)}, sorting::load_ids, ids,
           count_, rows_, from, FaultSlot(args));
    const dim3 grid(static_cast<unsigned>(blocks_)), block(sorting::threads);
    for (int pass = 0; pass < passes_; ++pass) {
      launch({args, "sort ids", grid, block}, sorting::count_digits, from.keys, count_, 8 * pass,
             counts);
      launch({args, "sort ids", dim3(1), dim3(1024)}, sorting::scan, counts,
             blocks_ * sorting::digits);
      launch({args, "sort ids", grid, block}, sorting::scatter, from, to, count_, 8 * pass, counts);
      std::swap(from, to);
    }
    return from;
  }

 private:
  std::int64_t count_, rows_, blocks_;
  int passes_ = 0;
  Bytes list_, workspace_;
};

}  // namespace ebb::cuda
