// Elements in kernels: half types are widened to float and rounded to nearest even, one at a time
// or 16 bytes together, the most a thread reads or writes with one instruction.
#pragma once

#include <cstdint>

#include "ops/dispatch.h"

namespace ebb::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(BFloat16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ inline float widen(Half x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
// Integers have no wider type.
template <class T>
requires std::is_integral_v<T> __device__ T widen(T x) { return x; }

template <class S>
__device__ inline S narrow(Compute<S> x) {
  if constexpr (std::is_same_v<S, Half>) {
    S result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
  } else if constexpr (std::is_same_v<S, BFloat16>) {
    S result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
  } else {
    return x;
  }
}

// Elements of S in 16 bytes.
template <class S>
inline constexpr int pack = 16 / static_cast<int>(sizeof(S));

// The elements of 16 bytes.
template <class S>
__device__ inline void unpack(uint4 raw, Compute<S> (&to)[pack<S>]) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < pack<S>; ++i) {
    if constexpr (sizeof(S) == 8) {
      to[i] = __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
    } else if constexpr (sizeof(S) == 4) {
      to[i] = __uint_as_float(words[i]);
    } else {
      S element;
      element.bits = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
      to[i] = widen(element);
    }
  }
}

// `from` and `to` must be aligned to 16 bytes.
template <class S>
__device__ inline void load_pack(const S* from, Compute<S> (&to)[pack<S>]) {
  unpack<S>(*reinterpret_cast<const uint4*>(from), to);
}

template <class S>
__device__ inline void store_pack(S* to, const Compute<S> (&from)[pack<S>]) {
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < pack<S>; ++i) {
    if constexpr (sizeof(S) == 8) {
      words[2 * i] = static_cast<std::uint32_t>(__double2loint(from[i]));
      words[2 * i + 1] = static_cast<std::uint32_t>(__double2hiint(from[i]));
    } else if constexpr (sizeof(S) == 4) {
      words[i] = __float_as_uint(from[i]);
    } else {
      words[i / 2] |= static_cast<std::uint32_t>(narrow<S>(from[i]).bits) << (16 * (i % 2));
    }
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

// Whether packs may be read or written at all these addresses.
template <class... P>
bool aligned_for_packs(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Avoids a clash: ebb's tensor functions have the same names as the C library's.
__device__ inline float exponential(float x) { return ::expf(x); }
__device__ inline double exponential(double x) { return ::exp(x); }
__device__ inline double logarithm(double x) { return ::log(x); }
__device__ inline float square_root(float x) { return ::sqrtf(x); }
__device__ inline double square_root(double x) { return ::sqrt(x); }

template <class T>
__device__ constexpr T infinity() {
  return static_cast<T>(__builtin_huge_val());
}

}  // namespace ebb::cuda
