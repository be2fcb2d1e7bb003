// Packing of bfloat16 by pairs of neighbours along the inner axis, as the instructions of AVX-512
// BF16 read both factors and those of AMX the second. An odd last number is paired with 0.
#pragma once

#include "ops/matmul/panel_kernels.h"

namespace ebb {
namespace {

inline __mmask32 first32(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? 0u : (__mmask32{1} << count) - 1u;
}

// Two runs of 32 lanes at neighbouring depths become pairs: `low` holds those of lanes 0 to 15 and
// `high` those of lanes 16 to 31.
class Interleave {
 public:
  EBB_PANELS Interleave() {
    // Of two registers with 32 numbers each: number i of the first, then number i of the second.
    alignas(64) std::uint16_t order[2][32];
    for (std::uint16_t i = 0; i < 32; ++i) {
      order[i / 16][2 * (i % 16)] = i;
      order[i / 16][2 * (i % 16) + 1] = static_cast<std::uint16_t>(32 + i);
    }
    low_ = _mm512_load_si512(order[0]), high_ = _mm512_load_si512(order[1]);
  }
  EBB_PANELS __m512i low(__m512i first, __m512i second) const {
    return _mm512_permutex2var_epi16(first, low_, second);
  }
  EBB_PANELS __m512i high(__m512i first, __m512i second) const {
    return _mm512_permutex2var_epi16(first, high_, second);
  }

 private:
  __m512i low_, high_;
};

// The run of lanes at one depth, where neighbouring lanes are neighbours in memory; 0 past the end.
EBB_PANELS inline __m512i run_of_lanes(const PanelSource<BFloat16>& s, __mmask32 lanes,
                                       std::int64_t k) {
  return k < s.depth ? _mm512_maskz_loadu_epi16(lanes, s.from + k * s.depth_stride)
                     : _mm512_setzero_si512();
}

struct PairUnits {
  using Number = BFloat16;
  using Unit = std::uint32_t;

  EBB_PANELS static __m512i run(const BFloat16* from, std::int64_t count) {
    return _mm512_maskz_loadu_epi16(first32(count), from);
  }

  EBB_PANELS static void pack_along_lanes(const PanelSource<BFloat16>& s, int width,
                                          std::uint32_t* to) {
    const Interleave pairs;
    const __mmask32 read = first32(s.lanes);
    const __mmask16 written_low = first16(width), written_high = first16(width - panel_lanes);
    for (std::int64_t k = 0; k < s.depth; k += 2, to += width) {
      const __m512i first = run_of_lanes(s, read, k), second = run_of_lanes(s, read, k + 1);
      _mm512_mask_storeu_epi32(to, written_low, pairs.low(first, second));
      if (width > panel_lanes)
        _mm512_mask_storeu_epi32(to + panel_lanes, written_high, pairs.high(first, second));
    }
  }
};

}  // namespace
}  // namespace ebb
