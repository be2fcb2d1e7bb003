// Shared by attention's warpgroup kernels. Each warpgroup (four warps) of a block computes 64 rows
// of the result; one thread of the block fetches the tiles for all of them.
#pragma once

#include "ops/attention/first_keys.cuh"
#include "ops/attention/mma.cuh"
#include "ops/attention/weights.cuh"
#include "ops/cuda/tile_copy.cuh"
#include "ops/cuda/wgmma.cuh"

namespace ebb::attention {

using namespace cuda;  // NOLINT: a header of kernels, included by nothing else

// Rows of `size` elements (a multiple of 16) in tiles of 64, one after the other.
template <class S, int rows, int size>
struct RowTiles {
  static constexpr int parts = (size + 63) / 64;
  static constexpr std::uint64_t next_part = rows * 8;  // in units of descriptors
  SharedTile<S, rows, 64> part[parts];

  // For its rows as rows of a or columns of b, and as rows of b.
  __device__ std::uint64_t descriptor() const { return tile_descriptor(part); }
  __device__ std::uint64_t row_descriptor() const {
    return tile_descriptor(part, parts > 1 ? next_part : 1);
  }
  // By one thread: rows row.. of a head.
  __device__ void copy(const CUtensorMap& map, Barrier& there, int row, int head, int batch) {
#pragma unroll
    for (int c = 0; c < parts; ++c) copy_tile(&part[c], map, there, row, head, batch, 64 * c);
  }
};

// The tile and head of a block. With a causal mask tiles differ in length, so the longest start
// first, but only among as many heads as fit into the cache together.
struct WorkOrder {
  int tiles, heads;  // heads of all batches
  int together;      // heads

  WorkOrder(int tile_count, int head_count, std::int64_t bytes_per_head)
      : tiles(tile_count), heads(head_count) {
    constexpr std::int64_t cache = 24 << 20;  // bytes; about half of the second-level cache
    together = static_cast<int>(std::clamp<std::int64_t>(
        cache / std::max<std::int64_t>(bytes_per_head, 1), 1, std::max(heads, 1)));
  }
  dim3 grid() const { return dim3(static_cast<unsigned>(tiles) * static_cast<unsigned>(heads)); }

  struct Item {
    int tile, head;
  };
  __device__ Item operator()(int block) const {
    const int section = block / (tiles * together), first = section * together;
    const int here = min(together, heads - first), n = block - section * tiles * together;
    return {n / here, first + n % here};
  }
};

// The thread's warp, in a warp-uniform register.
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}

// Transposes four words of four lanes: lane t gets word t of each.
__device__ inline void transpose_quad(std::uint32_t (&w)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto swap = [&](std::uint32_t& low, std::uint32_t& high, int bit) {
    const bool upper = (t & bit) != 0;
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, bit);
    (upper ? low : high) = got;
  };
  swap(w[0], w[1], 1), swap(w[2], w[3], 1);
  swap(w[0], w[2], 2), swap(w[1], w[3], 2);
}

// A warp's 16 rows of results, times `factor`, to rows of `out` that are whole pieces of 16 bytes:
// of `rows` rows those that exist, and of each `size` elements.
template <class S, int count>
__device__ void write_pieces(S* out, std::int64_t stride, int rows, int size,
                             const float (&c)[count][4], const float (&factor)[2]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int n = 0; n < count; n += 4) {
      std::uint32_t w[4] = {};
#pragma unroll
      for (int k = 0; k < min(4, count - n); ++k)
        w[k] = packed<S>(c[n + k][2 * half] * factor[half], c[n + k][2 * half + 1] * factor[half]);
      transpose_quad(w);
      const int row = g + 8 * half, column = 8 * (n + t);
      if (row < rows && column < size)
        *reinterpret_cast<uint4*>(out + row * stride + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// Results as factors of the next product.
template <class S, int count>
__device__ void as_factors(std::uint32_t (&a)[count / 2][4], const float (&c)[count][4]) {
#pragma unroll
  for (int k = 0; k < count / 2; ++k) as_factor<S>(a[k], c[2 * k], c[2 * k + 1]);
}

// The same after dropout.
template <class S, bool plain, int count>
__device__ void as_kept_factors(std::uint32_t (&a)[count / 2][4], const float (&c)[count][4],
                                const Kept<plain, count>& kept) {
  as_factors<S>(a, c);
#pragma unroll
  for (int k = 0; k < count / 2; ++k) {
    a[k][0] = kept.template packed<0>(k, a[k][0]);
    a[k][1] = kept.template packed<1>(k, a[k][1]);
    a[k][2] = kept.template packed<2>(k, a[k][2]);
    a[k][3] = kept.template packed<3>(k, a[k][3]);
  }
}

// c = a · bᵀ for a group's 64 rows of a, given by its descriptor in RowTiles A, and the rows of b.
template <class A, class S, int rows, int size, int count>
__device__ void start_rows(float (&c)[count][4], std::uint64_t a,
                           const RowTiles<S, rows, size>& b) {
  static_assert(rows == 8 * count);
  const std::uint64_t tile = b.descriptor();
#pragma unroll
  for (int d = 0; d < size / 16; ++d)
    start_product<S>(c, a + d / 4 * A::next_part + d % 4 * next_columns,
                     tile + d / 4 * b.next_part + d % 4 * next_columns, d > 0);
}
// c += a · b for the rows of b.
template <class S, int rows, int size, int count>
__device__ void start_sums(float (&c)[count][4], const std::uint32_t (&a)[rows / 16][4],
                           const RowTiles<S, rows, size>& b) {
  static_assert(size == 8 * count);
  const std::uint64_t tile = b.row_descriptor();
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) start_product<S>(c, a[k], tile + k * next_rows, true);
}

// Turns a tile of scores into weights. Updates the running maximum (times the scale and log2(e))
// and this lane's part of the running sum, and gives the factor for earlier sums.
struct Running {
  float most[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {}, shrink[2];

  template <class S, bool plain, int count>
  __device__ void weigh(const CudaProblem& p, const ScoreRules<S, plain>& rules,
                        const FirstKeys<plain>& first_keys, const ShownKeys<plain>& shown, int row0,
                        int j, float (&scores)[count][4]) {
    constexpr int width = 8 * count;  // keys
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, t = static_cast<int>(threadIdx.x) % 4;
    const bool every = !rules.masks_all() && j + width <= p.keys &&
                       (!p.causal || j + width - 1 <= row0) &&
                       first_keys.sees(min(row0, p.queries - 1), j);
    float scale = static_cast<float>(p.scale) * log2_e;
    if (!every)
      scale = follow_rules(
          rules, scores, [&](int, int e) { return row0 + g + e / 2 * 8; },
          [&](int n, int e) { return j + 8 * n + 2 * t + e % 2; },
          [&](int n, int e) { return shown.column(n, e % 2); });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = scores[0][2 * half];
#pragma unroll
      for (int n = 0; n < count; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) top = fmaxf(top, scores[n][2 * half + e]);
      top = join_row(top, [](float x, float y) { return fmaxf(x, y); });
      top = fmaxf(most[half], top * scale);
      const float base = top == -infinity<float>() ? 0.0f : top;  // no key yet: any finite base
      shrink[half] = power_of_two(most[half] - base);
      most[half] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < count; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = scores[n][2 * half + e];
          s = power_of_two(fmaf(s, scale, -base));
          sum += s;
        }
      total[half] = total[half] * shrink[half] + sum;
    }
  }
};

// Whether the device has warpgroups and these kernels support the problem. (The scale must be
// positive, because scores are compared before they are scaled.)
inline bool fits_wgmma(const CudaProblem& p) {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  return major == 9 && minor == 0 && std::max(p.size, p.value_size) <= 128 && p.scale > 0.0 &&
         std::min({p.batches, p.heads, p.queries, p.keys, p.size, p.value_size}) > 0;
}

// For heads of 65 to 128 (attention_wide_wgmma.cuh, attention_grad_wgmma.cuh).
namespace wide {
template <class S>
bool forward(const KernelArgs& args, const CudaProblem& p, const ForwardArgs<S>& a);
template <class S, bool plain>
bool backward(const KernelArgs& args, const CudaProblem& p, const BackwardArgs<S>& a);
}  // namespace wide

inline TileSource tile_source(const void* data, const HeadSteps& steps, int batches, int heads,
                              int length, int size) {
  return {data, batches, heads, length, size, steps.batch, steps.head, steps.row};
}

}  // namespace ebb::attention
