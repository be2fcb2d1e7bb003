// Magnitudes: one block of threads for each part of the matrix. Codes: a block takes a tile of 128
// × 128 elements; a thread encodes 4 rows of 8 columns at a time, writes the codes of each row and
// leaves those of each column in shared memory, from where the transpose is written in runs of 16
// bytes. So x is read once for both.
#include <cuda_fp8.h>

#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/fp8/fp8.h"

namespace ebb {
namespace {

using namespace cuda;

constexpr int tile = 128;           // rows and columns
constexpr int columns_at_once = 8;  // 16 bytes of bfloat16
constexpr int rows_at_once = 4;     // one word of a column's codes
constexpr int column_words = tile / rows_at_once;
constexpr int column_packs = tile / 16;
constexpr int quantise_threads = 256, amax_threads = 512;

// A bfloat16 matrix whose rows may lie apart.
struct Source {
  const BFloat16* data;
  std::int64_t rows, columns, stride;
  bool packs;  // whether rows begin at multiples of 16 bytes

  Source(const Arg& arg, const BFloat16* at)
      : data(at),
        rows(arg.shape()[0]),
        columns(arg.shape()[1]),
        stride(arg.strides[0]),
        packs(arg.strides[0] % columns_at_once == 0 && aligned_for_packs(at)) {}
  // The element with row-major number `element`, a multiple of 8.
  __device__ const BFloat16* at(std::int64_t element) const {
    if (stride == columns) return data + element;
    const std::int64_t row = element / columns;
    return data + row * stride + (element - row * columns);
  }
  __device__ uint4 load(const BFloat16* from) const {
    if (packs) return *reinterpret_cast<const uint4*>(from);
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = from[2 * i].bits | static_cast<std::uint32_t>(from[2 * i + 1].bits) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

__device__ std::uint32_t largest_of_warp(std::uint32_t x) { return __reduce_max_sync(~0u, x); }

template <int threads>
__device__ std::uint32_t largest_of_block(std::uint32_t x) {
  __shared__ std::uint32_t of_warps[threads / 32];
  x = largest_of_warp(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  return largest_of_warp(threadIdx.x % 32 < threads / 32 ? of_warps[threadIdx.x % 32] : 0);
}

// Two magnitudes as 16-bit numbers in one word.
__device__ std::uint32_t larger_of_pairs(std::uint32_t a, std::uint32_t b) {
  return __vmaxu2(a, b & 0x7fff7fffu);
}

__global__ void __launch_bounds__(amax_threads)
    find_magnitudes(Source x, std::uint32_t* magnitudes) {
  const Fp8Part part = fp8_part(x.rows * x.columns, blockIdx.x);
  constexpr std::int64_t step = amax_threads * columns_at_once;
  std::uint32_t pairs = 0;
  for (std::int64_t i = part.first + threadIdx.x * columns_at_once; i < part.last; i += step * 4) {
    uint4 raw[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      raw[k] = i + k * step < part.last ? x.load(x.at(i + k * step)) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      pairs = larger_of_pairs(pairs, raw[k].x);
      pairs = larger_of_pairs(pairs, raw[k].y);
      pairs = larger_of_pairs(pairs, raw[k].z);
      pairs = larger_of_pairs(pairs, raw[k].w);
    }
  }
  const std::uint32_t largest = largest_of_block<amax_threads>(max(pairs & 0xffffu, pairs >> 16))
                                << 16;
  if (threadIdx.x == 0) magnitudes[blockIdx.x] = largest;
}

// Four codes of the numbers x[0..3], the first in the lowest byte.
template <Fp8 format>
__device__ std::uint32_t encoded(const float* x, float inverse) {
  constexpr auto kind = format == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low =
      __nv_cvt_float2_to_fp8x2(make_float2(x[0] * inverse, x[1] * inverse), __NV_SATFINITE, kind);
  const std::uint32_t high =
      __nv_cvt_float2_to_fp8x2(make_float2(x[2] * inverse, x[3] * inverse), __NV_SATFINITE, kind);
  return low | high << 16;
}

// From four rows of four codes, four columns.
__device__ void transpose_bytes(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
  const std::uint32_t a = __byte_perm(rows[0], rows[1], 0x5140),
                      b = __byte_perm(rows[2], rows[3], 0x5140),
                      c = __byte_perm(rows[0], rows[1], 0x7362),
                      d = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(a, b, 0x5410), columns[1] = __byte_perm(a, b, 0x7632);
  columns[2] = __byte_perm(c, d, 0x5410), columns[3] = __byte_perm(c, d, 0x7632);
}

// The place of 16 codes of a column in shared memory. Neighbouring columns are shifted against each
// other, so that threads that write different columns use different banks.
__device__ int pack_place(int column, int pack) {
  return column * column_packs + (pack ^ (column / columns_at_once % column_packs));
}

template <Fp8 format>
__global__ void __launch_bounds__(quantise_threads)
    quantise(Source x, const std::uint32_t* magnitudes, std::uint8_t* plain, std::uint8_t* turned,
             std::uint32_t* step_out) {
  static_assert(fp8_parts == quantise_threads);
  __shared__ uint4 columns[tile * column_packs];
  const std::uint32_t magnitude = magnitudes[threadIdx.x];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * tile,
                     first_column = static_cast<std::int64_t>(blockIdx.y) * tile;
  constexpr int across = tile / columns_at_once, patches = across * column_words / quantise_threads;
  uint4 raw[patches][rows_at_once];
#pragma unroll
  for (int p = 0; p < patches; ++p) {
    const int patch = static_cast<int>(threadIdx.x) + p * quantise_threads;
    const std::int64_t row = first_row + patch / across * rows_at_once,
                       column = first_column + patch % across * columns_at_once;
    // Sizes are multiples of 16, so a patch is whole or outside.
    if (row >= x.rows || column >= x.columns) continue;
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r)
      raw[p][r] = x.load(x.data + (row + r) * x.stride + column);
  }
  // While the elements are on their way.
  const std::uint32_t step = fp8_step_bits(format, largest_of_block<quantise_threads>(magnitude));
  const float inverse = __uint_as_float(fp8_inverse_step_bits(step));
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *step_out = step;
#pragma unroll
  for (int p = 0; p < patches; ++p) {
    const int patch = static_cast<int>(threadIdx.x) + p * quantise_threads;
    const int own_row = patch / across * rows_at_once,
              own_column = patch % across * columns_at_once;
    const std::int64_t row = first_row + own_row, column = first_column + own_column;
    if (row >= x.rows || column >= x.columns) continue;
    std::uint32_t codes[2][rows_at_once];  // of columns 0 to 3 and 4 to 7
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      float values[columns_at_once];
      unpack<BFloat16>(raw[p][r], values);
      codes[0][r] = encoded<format>(values, inverse);
      codes[1][r] = encoded<format>(values + 4, inverse);
      if (plain)
        *reinterpret_cast<uint2*>(plain + (row + r) * x.columns + column) =
            make_uint2(codes[0][r], codes[1][r]);
    }
    if (!turned) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t words[4];
      transpose_bytes(codes[half], words);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        reinterpret_cast<std::uint32_t*>(
            columns + pack_place(own_column + 4 * half + c, own_row / 16))[own_row % 16 / 4] =
            words[c];
    }
  }
  if (!turned) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tile * column_packs; i += quantise_threads) {
    const std::int64_t column = first_column + i / column_packs,
                       row = first_row + i % column_packs * 16;
    if (row < x.rows && column < x.columns)
      *reinterpret_cast<uint4*>(turned + column * x.rows + row) =
          columns[pack_place(i / column_packs, i % column_packs)];
  }
}

}  // namespace

Kernel bind_fp8_amax_cuda(const KernelRequest& request, const NoAttributes&) {
  const Arg x = request.in(0);
  return {[x](const KernelArgs& args) {
    launch({args, "fp8_amax", dim3(static_cast<unsigned>(fp8_parts)), dim3(amax_threads)},
           find_magnitudes, Source(x, args.in<BFloat16>(0)), args.out<std::uint32_t>());
  }};
}

Kernel bind_fp8_quantise_cuda(const KernelRequest& request, const Fp8QuantiseAttributes& a) {
  const Arg x = request.in(0);
  return {[x, a](const KernelArgs& args) {
    const Source source(x, args.in<BFloat16>(0));
    std::uint8_t* plain = a.makes_plain() ? args.out<std::uint8_t>(0) : nullptr;
    std::uint8_t* turned =
        a.makes_transposed() ? args.out<std::uint8_t>(a.makes_plain() ? 1 : 0) : nullptr;
    launch({args, "fp8_quantise",
            dim3(static_cast<unsigned>(ceil_div(source.rows, tile)),
                 static_cast<unsigned>(ceil_div(source.columns, tile))),
            dim3(quantise_threads)},
           a.format == Fp8::e4m3 ? quantise<Fp8::e4m3> : quantise<Fp8::e5m2>, source,
           args.in<std::uint32_t>(1), plain, turned, args.out<std::uint32_t>(a.step_output()));
  }};
}

}  // namespace ebb
