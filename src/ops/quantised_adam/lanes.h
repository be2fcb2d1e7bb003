// A register of floats or ints, with the few operations that compilers do not find by themselves:
// lookups in tables that fit a register, and conversion from and to bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ebb::simd {

#if defined(__AVX512F__)
inline constexpr int lanes = 16;
// Masked forms with a full mask: g++ 12 warns of its own headers in the plain forms.
inline constexpr __mmask16 every = 0xffff;
#elif defined(__AVX2__)
inline constexpr int lanes = 8;
#else
inline constexpr int lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * lanes)));

inline constexpr std::int32_t sign_bit = INT32_MIN;

inline Floats all(float value) { return Floats{} + value; }
inline Ints all(std::int32_t value) { return Ints{} + value; }
inline Ints bits_of(Floats x) { return reinterpret_cast<Ints>(x); }
inline Floats floats_of(Ints x) { return reinterpret_cast<Floats>(x); }
inline Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
inline Floats magnitude(Floats x) { return floats_of(bits_of(x) & ~sign_bit); }
inline Ints magnitude(Ints x) { return x < 0 ? -x : x; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
inline Ints max(Ints a, Ints b) { return a > b ? a : b; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline Ints load_bytes(const std::uint8_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(
      _mm512_maskz_cvtepu8_epi32(every, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return Ints{from[0], from[1], from[2], from[3]};
#endif
}

// Values in [0, 256).
inline void store_bytes(std::uint8_t* to, Ints x) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm512_maskz_cvtepi32_epi8(every, reinterpret_cast<__m512i>(x)));
#elif defined(__AVX2__)
  const __m256i both = reinterpret_cast<__m256i>(x);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  for (int i = 0; i < lanes; ++i) to[i] = static_cast<std::uint8_t>(x[i]);
#endif
}

// Truncates. Values out of range give an unspecified int.
inline Ints truncate(Floats x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Ints>(_mm512_maskz_cvttps_epi32(every, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Ints>(_mm256_cvttps_epi32(reinterpret_cast<__m256>(x)));
#else
  Ints y;
  for (int i = 0; i < lanes; ++i)
    y[i] = std::abs(x[i]) < 0x1p30f ? static_cast<std::int32_t>(x[i]) : 0;
  return y;
#endif
}

inline Floats sqrt(Floats x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_sqrt_ps(every, reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  for (int i = 0; i < lanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// Eight numbers, twice: a register's worth whichever its width.
struct Table8 {
  alignas(64) float values[16] = {};

  constexpr void set(int i, double value) { values[i] = values[i + 8] = static_cast<float>(value); }
};

// table[index mod 8]
inline Floats lookup(const Table8& table, Ints index) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_permutexvar_ps(
      every, reinterpret_cast<__m512i>(index), _mm512_load_ps(table.values)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(
      _mm256_permutevar8x32_ps(_mm256_load_ps(table.values), reinterpret_cast<__m256i>(index)));
#else
  Floats y;
  for (int i = 0; i < lanes; ++i) y[i] = table.values[index[i] & 7];
  return y;
#endif
}

struct Table16 {
  alignas(64) float values[16];
};

// table[index mod 16]
inline Floats lookup(const Table16& table, Ints index) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_permutexvar_ps(
      every, reinterpret_cast<__m512i>(index), _mm512_load_ps(table.values)));
#elif defined(__AVX2__)
  const __m256i at = reinterpret_cast<__m256i>(index);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table.values), at),
               high = _mm256_permutevar8x32_ps(_mm256_load_ps(table.values + 8), at);
  return reinterpret_cast<Floats>(
      _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28))));
#else
  Floats y;
  for (int i = 0; i < lanes; ++i) y[i] = table.values[index[i] & 15];
  return y;
#endif
}

// The largest of all lanes, by way of a copy, so that `x` itself can stay in a register.
inline std::int32_t largest(Ints x) {
  std::int32_t values[lanes];
  std::memcpy(values, &x, sizeof x);
  return *std::max_element(values, values + lanes);
}

}  // namespace ebb::simd
