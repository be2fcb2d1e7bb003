// Codes to numbers, a register at a time.
#pragma once

#include <cstdint>

#include "ops/quantised_adam/lanes.h"
#include "ops/quantised_linear/levels.h"

namespace ebb {

// The level of element `i` of a row.
inline float level_at(LowBits kind, const std::uint8_t* codes, std::int64_t i) {
  if (kind == LowBits::int8) return static_cast<float>(static_cast<int>(codes[i]) - int8_zero);
  const int code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
  return four_bit_levels(kind)[static_cast<std::size_t>(code)];
}

namespace simd {

// The halves of lanes / 2 bytes, in order; only the lower four bits of a lane are valid.
inline Ints load_halves(const std::uint8_t* from) {
#if defined(__AVX512F__)
  const __m512i bytes =
      _mm512_maskz_cvtepu8_epi64(0xff, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return reinterpret_cast<Ints>(
      _mm512_maskz_or_epi64(0xff, bytes, _mm512_maskz_slli_epi64(0xff, bytes, 28)));
#elif defined(__AVX2__)
  std::int32_t four;
  std::memcpy(&four, from, sizeof four);
  const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  return reinterpret_cast<Ints>(_mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28)));
#else
  return Ints{from[0] & 15, from[0] >> 4, from[1] & 15, from[1] >> 4};
#endif
}

// Reads lanes of codes from where they are stored.
class EightBitLevels {
 public:
  explicit EightBitLevels(LowBits) {}
  static constexpr bool bytes = true;
  Floats operator()(const std::uint8_t* from) const {
    return to_floats(load_bytes(from) - int8_zero);
  }
};

class FourBitLevels {
 public:
  explicit FourBitLevels(LowBits kind) {
    std::copy_n(four_bit_levels(kind).begin(), 16, table_.values);
  }
  static constexpr bool bytes = false;
  Floats operator()(const std::uint8_t* from) const { return lookup(table_, load_halves(from)); }

 private:
  Table16 table_;
};

}  // namespace simd

// `count` elements of a block from its first code on, times its scale.
template <class Levels>
void unpack_block(const Levels& levels, LowBits kind, const std::uint8_t* codes, std::int64_t count,
                  float scale, float* to) {
  std::int64_t i = 0;
  for (; i + simd::lanes <= count; i += simd::lanes)
    simd::store(to + i, levels(codes + (Levels::bytes ? i : i / 2)) * scale);
  for (; i < count; ++i) to[i] = level_at(kind, codes, i) * scale;
}

inline void unpack_block(LowBits kind, const std::uint8_t* codes, std::int64_t count, float scale,
                         float* to) {
  if (kind == LowBits::int8)
    unpack_block(simd::EightBitLevels(kind), kind, codes, count, scale, to);
  else
    unpack_block(simd::FourBitLevels(kind), kind, codes, count, scale, to);
}

}  // namespace ebb
