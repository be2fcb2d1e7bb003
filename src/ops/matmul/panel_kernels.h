// The parts of panels.h that float32 and bfloat16 share. A source that includes this defines
// EBB_PANELS, the attribute that names the instructions of its functions.
//
// Only functions marked EBB_PANELS are compiled to these instructions, whatever processor the rest
// is compiled for. They are in an unnamed namespace and call nothing but each other and intrinsics:
// a shared inline function compiled for this processor could end up in use on others.
#pragma once

#include <immintrin.h>

#include <array>
#include <utility>

#include "ops/matmul/panels.h"

// g++ 12 warns of undefined registers inside the intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace ebb {
namespace {

// A mask of the first `count` elements of a register, or of all if there are more.
inline __mmask16 first16(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1u);
}

// Transposes 16 rows of 16 units of 4 bytes.
EBB_PANELS inline void transpose(__m512i (&x)[16]) {
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

// Whether neighbouring lanes of the source are neighbours in memory. An axis of one element may
// have any stride.
template <class T>
bool along_lanes(const PanelSource<T>& source) {
  return source.lane_stride == 1 || (source.lanes <= 1 && source.depth_stride != 1);
}

// A unit is 4 bytes of neighbours along the inner axis: one float32 number or a pair of bfloat16.
// Packed by units, a panel holds for each unit that of every lane, one after the other.
template <class Kind>
constexpr std::int64_t numbers_of_unit = 4 / sizeof(typename Kind::Number);

template <class Kind>
constexpr std::int64_t units_of(std::int64_t depth) {
  return (depth + numbers_of_unit<Kind> - 1) / numbers_of_unit<Kind>;
}

// Neighbours along the inner axis are neighbours in memory: 16 lanes × 16 units at a time.
template <class Kind>
EBB_PANELS void pack_along_depth(const PanelSource<typename Kind::Number>& s, int width,
                                 typename Kind::Unit* to) {
  constexpr std::int64_t numbers = numbers_of_unit<Kind>;
  const std::int64_t units = units_of<Kind>(s.depth);
  for (int lane = 0; lane < width; lane += panel_lanes) {
    const __mmask16 written = first16(width - lane);
    for (std::int64_t unit = 0; unit < units; unit += 16) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        x[i] = lane + i < s.lanes ? Kind::run(s.from + (lane + i) * s.lane_stride + numbers * unit,
                                              s.depth - numbers * unit)
                                  : _mm512_setzero_si512();
      transpose(x);
      typename Kind::Unit* at = to + unit * width + lane;
      const std::int64_t count = units - unit < 16 ? units - unit : 16;
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (i < count) _mm512_mask_storeu_epi32(at + i * width, written, x[i]);
    }
  }
}

}  // namespace
}  // namespace ebb
