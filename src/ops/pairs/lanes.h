// Rows of the pattern 2:4: from kept values to columns, and back.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ebb/half.h"
#include "ops/quantised_adam/lanes.h"

namespace ebb {

// For each pattern of the four bits of a group, the source of each of its columns: kept value 0 or
// 1, or 2 for zero. Patterns that no encoder writes, with more than two bits set, also name kept
// values.
inline constexpr auto pair_sources = [] {
  std::array<std::array<std::uint8_t, 4>, 16> table{};
  for (unsigned four = 0; four < 16; ++four)
    for (unsigned j = 0; j < 4; ++j)
      table[four][j] =
          static_cast<std::uint8_t>(four >> j & 1u ? std::popcount(four & ((1u << j) - 1)) % 2 : 2);
  return table;
}();

inline const std::array<std::uint8_t, 4>& sources_of(const std::uint8_t* positions,
                                                     std::int64_t group) {
  return pair_sources[positions[group / 2] >> (group % 2 * 4) & 15u];
}

// Columns [16 · n, 16 · n + 16) of a row as floats, from its values and positions.
#if defined(__AVX512F__)
inline simd::Floats sixteen_of_pairs(const float* values, const std::uint8_t* positions,
                                     std::int64_t n) {
  std::uint16_t mask;
  std::memcpy(&mask, positions + 2 * n, sizeof mask);
  // Reads eight values whatever the mask says: a damaged file must not lead out of the buffer.
  return reinterpret_cast<simd::Floats>(
      _mm512_maskz_expand_ps(mask, _mm512_maskz_loadu_ps(0xff, values + 8 * n)));
}
inline simd::Floats sixteen_of_pairs(const BFloat16* values, const std::uint8_t* positions,
                                     std::int64_t n) {
  std::uint16_t mask;
  std::memcpy(&mask, positions + 2 * n, sizeof mask);
  const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 8 * n));
  const __m512i wide = _mm512_maskz_slli_epi32(
      simd::every, _mm512_maskz_cvtepu16_epi32(0xff, _mm256_zextsi128_si256(eight)), 16);
  return reinterpret_cast<simd::Floats>(
      _mm512_maskz_expand_ps(mask, reinterpret_cast<__m512>(wide)));
}
template <class T>
inline constexpr bool has_registers = std::is_same_v<T, float> || std::is_same_v<T, BFloat16>;
#else
template <class T>
inline constexpr bool has_registers = false;
#endif

// Columns [first, first + count) of a row; `first` is a multiple of 16, `count` of 4.
template <class T, class C>
void spread_row(const T* values, const std::uint8_t* positions, std::int64_t first,
                std::int64_t count, C* to) {
  std::int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (has_registers<T> && std::is_same_v<C, float>)
    for (; i + 16 <= count; i += 16)
      simd::store(to + i, sixteen_of_pairs(values, positions, (first + i) / 16));
#endif
  for (; i < count; i += 4) {
    const std::int64_t group = (first + i) / 4;
    const C pair[3] = {static_cast<C>(values[2 * group]), static_cast<C>(values[2 * group + 1]),
                       C{}};
    const auto& sources = sources_of(positions, group);
    for (std::size_t j = 0; j < 4; ++j) to[i + static_cast<std::int64_t>(j)] = pair[sources[j]];
  }
}

template <class T>
void take_row(const T* columns, const std::uint8_t* positions, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; i += 4) {
    T pair[3] = {};
    const auto& sources = sources_of(positions, i / 4);
    for (std::size_t j = 0; j < 4; ++j)
      pair[sources[j]] = columns[i + static_cast<std::int64_t>(j)];
    to[i / 2] = pair[0], to[i / 2 + 1] = pair[1];
  }
}

}  // namespace ebb
