// Only the functions marked EBB_AVX512_BF16 are compiled to these instructions, whatever processor
// the rest is compiled for. They are in an unnamed namespace and call nothing but each other and
// intrinsics: a shared inline function compiled for this processor could end up in use on others.
#include "ops/matmul/bfloat16_panels.h"

#include <array>
#include <utility>

#include "ops/onednn.h"

#if defined(__x86_64__)
#include <immintrin.h>
// g++ 12 warns of undefined registers inside the intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define EBB_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace ebb {

#if defined(__x86_64__)

namespace {

constexpr int vector_lanes = 16;

// A mask of the first `count` elements of a register, or of all if there are more.
inline __mmask16 first16(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1u);
}
inline __mmask32 first32(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? 0u : (__mmask32{1} << count) - 1u;
}

// Transposes 16 rows of 16 pairs.
EBB_AVX512_BF16 inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  // Within each quarter of a register: 4 × 4 blocks are turned.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
    y[i] = _mm512_unpacklo_epi64(low01, low23);
    y[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    y[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    y[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  // y[4 g + j] holds columns j, 4 + j, 8 + j, 12 + j of rows 4 g to 4 g + 3: quarters are gathered.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i front01 = _mm512_shuffle_i32x4(y[j], y[4 + j], 0x44);
    const __m512i back01 = _mm512_shuffle_i32x4(y[j], y[4 + j], 0xee);
    const __m512i front23 = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0x44);
    const __m512i back23 = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0xee);
    x[j] = _mm512_shuffle_i32x4(front01, front23, 0x88);
    x[4 + j] = _mm512_shuffle_i32x4(front01, front23, 0xdd);
    x[8 + j] = _mm512_shuffle_i32x4(back01, back23, 0x88);
    x[12 + j] = _mm512_shuffle_i32x4(back01, back23, 0xdd);
  }
}

// Neighbours along the inner axis are neighbours in memory: 16 lanes × 16 pairs at a time.
EBB_AVX512_BF16 void pack_along_depth(const PanelSource& s, int width, BFloat16Pair* to) {
  const std::int64_t pairs = pairs_of(s.depth);
  for (int lane = 0; lane < width; lane += vector_lanes) {
    const __mmask16 written = first16(width - lane);
    for (std::int64_t pair = 0; pair < pairs; pair += 16) {
      const __mmask32 read = first32(s.depth - 2 * pair);
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        x[i] = lane + i < s.lanes
                   ? _mm512_maskz_loadu_epi16(read, s.from + (lane + i) * s.lane_stride + 2 * pair)
                   : _mm512_setzero_si512();
      transpose(x);
      BFloat16Pair* at = to + pair * width + lane;
      const std::int64_t count = pairs - pair < 16 ? pairs - pair : 16;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (i < count) _mm512_mask_storeu_epi32(at + i * width, written, x[i]);
    }
  }
}

// Neighbouring lanes are neighbours in memory: two runs of them are interleaved.
EBB_AVX512_BF16 void pack_along_lanes(const PanelSource& s, int width, BFloat16Pair* to) {
  // Of two registers with 32 numbers each: number i of the first, then number i of the second.
  alignas(64) std::uint16_t order[2][32];
  for (std::uint16_t i = 0; i < 32; ++i) {
    order[i / 16][2 * (i % 16)] = i;
    order[i / 16][2 * (i % 16) + 1] = static_cast<std::uint16_t>(32 + i);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  const __mmask32 read = first32(s.lanes);
  const __mmask16 written_low = first16(width), written_high = first16(width - vector_lanes);
  for (std::int64_t k = 0; k < s.depth; k += 2, to += width) {
    const BFloat16* from = s.from + k * s.depth_stride;
    const __m512i first = _mm512_maskz_loadu_epi16(read, from);
    const __m512i second = k + 1 < s.depth ? _mm512_maskz_loadu_epi16(read, from + s.depth_stride)
                                           : _mm512_setzero_si512();
    _mm512_mask_storeu_epi32(to, written_low, _mm512_permutex2var_epi16(first, low, second));
    if (width > vector_lanes)
      _mm512_mask_storeu_epi32(to + vector_lanes, written_high,
                               _mm512_permutex2var_epi16(first, high, second));
  }
}

EBB_AVX512_BF16 inline __m512 widened(const BFloat16* from, __mmask16 present) {
  const __m512i upper = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(upper, 16));
}

// `vectors` registers of 16 columns each.
template <int rows, int vectors>
EBB_AVX512_BF16 void multiply(const PanelProduct& p) {
  __mmask16 present[vectors];
  __m512 sums[rows][vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) present[v] = first16(p.columns - v * vector_lanes);
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      sums[r][v] =
          p.add ? _mm512_maskz_loadu_ps(present[v], p.sums + r * p.sums_stride + v * vector_lanes)
                : _mm512_setzero_ps();

  const BFloat16Pair *a = p.a, *b = p.b;
  for (std::int64_t pair = 0; pair < p.pairs; ++pair, a += rows, b += vectors * vector_lanes) {
    __m512bh column[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      column[v] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + v * vector_lanes));
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r) {
      const __m512bh row = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r])));
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], row, column[v]);
    }
  }

  if (!p.out) {
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        _mm512_mask_storeu_ps(p.sums + r * p.sums_stride + v * vector_lanes, present[v],
                              sums[r][v]);
    return;
  }
  __m512 bias[vectors];
#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v)
    bias[v] = p.bias ? widened(p.bias + v * vector_lanes, present[v]) : _mm512_setzero_ps();
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      _mm256_mask_storeu_epi16(
          p.out + r * p.out_stride + v * vector_lanes, present[v],
          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_add_ps(sums[r][v], bias[v]))));
}

using Multiply = void (*)(const PanelProduct&);

template <int... before>
constexpr std::array<std::array<Multiply, 2>, panel_rows> by_size(
    std::integer_sequence<int, before...>) {
  return {{{multiply<before + 1, 1>, multiply<before + 1, 2>}...}};
}

}  // namespace

bool bfloat16_panels_work() { return onednn::has_isa(dnnl::cpu_isa::avx512_core_bf16); }

void pack_panel(const PanelSource& source, int width, BFloat16Pair* to) {
  // An axis of one element may have any stride.
  if (source.lane_stride == 1 || (source.lanes <= 1 && source.depth_stride != 1))
    pack_along_lanes(source, width, to);
  else
    pack_along_depth(source, width, to);
}

void multiply_panels(const PanelProduct& product) {
  static constexpr auto kernels = by_size(std::make_integer_sequence<int, panel_rows>{});
  kernels[static_cast<std::size_t>(product.rows - 1)][product.columns > vector_lanes](product);
}

#else

bool bfloat16_panels_work() { return false; }
void pack_panel(const PanelSource&, int, BFloat16Pair*) {}
void multiply_panels(const PanelProduct&) {}

#endif

}  // namespace ebb
