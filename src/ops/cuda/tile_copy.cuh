// Copies of tiles by the tensor memory accelerator (compute capability 9.0): one thread requests a
// tile, and a barrier in shared memory signals its arrival.
//
// Tiles have rows of 128 bytes. Piece c (of 16 bytes) of row r lies at place c ^ (r % 8) of its
// row, as in SharedTile, which is what matrix products on shared memory call a swizzle of 128
// bytes. A tile begins at a multiple of 1024.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/element.cuh"

namespace ebb::cuda {

// A barrier that counts arrivals and bytes. Its phases alternate between parity 0 and 1; a wait
// for a parity returns once the phase of that parity is over, so a wait for 1 on a new barrier
// returns at once.
class Barrier {
 public:
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals));
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  __device__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void wait(int parity) {
    std::uint32_t over = 0;
    do {
      asm volatile(
          "{\n"
          ".reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.u32 %0, 1, 0, over;\n"
          "}"
          : "=r"(over)
          : "r"(address()), "r"(parity)
          : "memory");
    } while (over == 0);
  }
  __device__ std::uint32_t address() const {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(&word_));
  }

 private:
  std::uint64_t word_;
};

// Makes new barriers visible to the copy engine; a __syncthreads follows.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Barriers of a pipeline whose tiles use `stages` buffers in turn.
template <int stages>
class Ring {
  static_assert((stages & (stages - 1)) == 0);

 public:
  __device__ void init(int warps) {
    for (int s = 0; s < stages; ++s) there_[s].init(1), left_[s].init(warps);
  }
  // By one thread: waits until the place of step n is free; `bytes` will be copied to it.
  __device__ Barrier& take(int n, int bytes) {
    if (n >= stages) left_[n % stages].wait((n / stages & 1) ^ 1);
    there_[n % stages].arrive_and_expect(bytes);
    return there_[n % stages];
  }
  // By all threads: until the tiles of step n are there.
  __device__ void wait(int n) { there_[n % stages].wait(n / stages & 1); }
  // By all threads of a warp: it does not read the tiles of step n any more.
  __device__ void leave(int n) {
    if (threadIdx.x % 32 == 0) left_[n % stages].arrive();
  }

 private:
  Barrier there_[stages], left_[stages];
};

// Rows row.. of head `head` of batch `batch` into `to`, as many as the map's box has, and 64
// columns of each from `column` on; rows and columns outside the tensor become zeros. The bytes
// count on `barrier`.
__device__ inline void copy_tile(void* to, const CUtensorMap& map, Barrier& barrier, int row,
                                 int head, int batch, int column = 0) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier.address()), "r"(column), "r"(row),
      "r"(head), "r"(batch)
      : "memory");
}

// `bytes` bytes that lie together; both addresses and the number are multiples of 16.
__device__ inline void copy_bytes(void* to, const void* from, Barrier& barrier, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(barrier.address())
      : "memory");
}

// A (B, H, T, D) tensor of a half type by its sizes and its strides in elements, read in tiles of
// `rows` rows and 64 columns. Returns false if the hardware does not support these strides.
struct TileSource {
  const void* data;
  std::int64_t batches, heads, length, size;
  std::int64_t batch_stride, head_stride, row_stride;
};
bool make_tile_map(CUtensorMap& map, const TileSource& source, int rows);

}  // namespace ebb::cuda
