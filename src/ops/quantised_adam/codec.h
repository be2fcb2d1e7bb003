// Codes of moments to floats and back, a register at a time and without memory: the maps of maps.h
// written as arithmetic. Decoded values agree with the maps to a few units in the last place; a
// value is encoded as the nearest, where rounding of the arithmetic decides between two that are
// equally near to within 1e-4 of their distance.
#pragma once

#include "ops/quantised_adam/lanes.h"

namespace ebb::simd {

// x, scaled to [-1, 1], has sign and magnitude apart: codes of a signed map lie symmetrically
// around `zero`, except that the largest positive one has no counterpart.
inline Ints signed_code(Floats x, Ints magnitude, int zero) {
  const Ints sign = bits_of(x) >> 31;  // 0 or -1
  return max((magnitude ^ sign) - sign, Ints{} - zero) + zero;
}

// The code of a magnitude in decade d is the whole part of slope[d] * x + start[d], at most
// last[d]. The first decade reaches down to 0, and 1 is a decade by itself.
struct Decades {
  float lower[8] = {}, slope[8] = {}, start[8] = {}, last[8] = {};
};
// `first`: values in the lowest decade, 1 or 2; each next one has twice as many.
constexpr Decades decades(int first) {
  Decades d;
  double unit = 1e-6;  // the upper end of the decade
  for (int i = 0; i < 7; ++i, unit *= 10.0) {
    const double values = first << i;
    d.slope[i] = static_cast<float>(values / (0.9 * unit));
    d.start[i] = static_cast<float>(values * 8.0 / 9.0 - (first - 1));
    d.last[i] = static_cast<float>(2 * values - first);
    // Half way between the last value of the decade before and the first of this one.
    if (i > 0) d.lower[i] = static_cast<float>(0.1 * unit * (1.0 + 1.8 / values));
  }
  const double top = 64 * first;
  d.lower[7] = static_cast<float>(1.0 - 0.225 / top);
  d.start[7] = d.last[7] = d.last[6] + 1.0f;
  // Zero ends half way to the first value, inside the first part.
  if (first == 1) {
    d.slope[0] = static_cast<float>(1.0 / 0.275e-6);
    d.start[0] = 0.0f;
  } else {
    d.slope[0] = static_cast<float>(1.0 / 0.3875e-6);
    d.start[0] = static_cast<float>(1.0 - 0.1625 / 0.3875);
  }
  return d;
}

// Eight bits, both maps dynamic with seven decades. Decade d, from 10^(d-7) to 10^(d-6), has 2^d
// values in the signed map and 2^(d+1) in the unsigned one, so the number of a value (counted from
// 1) plus 1/2, as a float, holds the decade in its exponent and the place inside it in its
// mantissa.
struct EightBits {
  static constexpr int bits = 8, block = 256, zero = 127;

  static Floats mean(Ints code) {
    const Ints offset = code - zero, sign = offset >> 31;
    // Exponents 0 to 6 are decades, at 127 + exponent modulo 8. The remaining place serves 0 and 1:
    // as numbers 0.5 and 128.5, they have the mantissas 1 and 1 + 2^-8.
    static constexpr float slope[8] = {0.9e-5f, 0.9e-4f, 0.9e-3f, 0.9e-2f,
                                       0.9e-1f, 0.9f,    256.0f,  0.9e-6f};
    static constexpr float start[8] = {0.1e-5f, 0.1e-4f, 0.1e-3f, 0.1e-2f,
                                       0.1e-1f, 0.1f,    0.0f,    0.1e-6f};
    const Floats value = in_decade(to_floats((offset ^ sign) - sign) + 0.5f, slope, start);
    return floats_of(bits_of(value) | (sign << 31));
  }

  static Floats square(Ints code) {
    // Exponents 1 to 7 are decades. 0 and 255 share the remaining place: as numbers 1.5 and 256.5,
    // they have the mantissas 1 + 1/2 and 1 + 2^-9.
    static constexpr float one = -2.0078431f;
    static constexpr float slope[8] = {0.9e-6f, 0.9e-5f, 0.9e-4f, 0.9e-3f,
                                       0.9e-2f, 0.9e-1f, 0.9f,    one};
    static constexpr float start[8] = {0.1e-6f, 0.1e-5f, 0.1e-4f, 0.1e-3f,
                                       0.1e-2f, 0.1e-1f, 0.1f,    -0.5f * one};
    return in_decade(to_floats(code) + 1.5f, slope, start);
  }

  static Ints encode_mean(Floats x) {
    static constexpr Decades d = decades(1);
    return signed_code(x, number(x, d), zero);
  }
  static Ints encode_square(Floats x) {
    static constexpr Decades d = decades(2);
    return number(x, d);
  }

 private:
  static Floats in_decade(Floats number, const float (&slope)[8], const float (&start)[8]) {
    const Ints bits = bits_of(number), exponent = bits >> 23;
    const Floats place = floats_of((bits & 0x007fffff) | 0x3f800000) - 1.0f;
    return place * lookup8(slope, exponent) + lookup8(start, exponent);
  }

  static Ints number(Floats x, const Decades& d) {
    const Ints magnitude = bits_of(x) & 0x7fffffff;
    const Floats a = floats_of(magnitude);
    // A float's bits are nearly its logarithm. The guess is the decade or the next one.
    constexpr float log_of_2 = 0.30103f, shift = 6.0f - 127.0f * log_of_2 + 1.3f;
    const Ints guess = max(truncate(to_floats(magnitude) * (log_of_2 * 0x1p-23f) + shift), Ints{});
    const Ints decade = guess + (a < lookup8(d.lower, guess));
    return truncate(
        min(a * lookup8(d.slope, decade) + lookup8(d.start, decade), lookup8(d.last, decade)));
  }
};

// Four bits: a dynamic map with three decades for the mean, a linear one for the square.
struct FourBits {
  static constexpr int bits = 4, block = 128, zero = 7;

  static Floats mean(Ints code) {
    static constexpr float map[16] = {-0.8875f, -0.6625f, -0.4375f, -0.2125f, -0.0775f, -0.0325f,
                                      -0.0055f, 0.0f,     0.0055f,  0.0325f,  0.0775f,  0.2125f,
                                      0.4375f,  0.6625f,  0.8875f,  1.0f};
    return lookup16(map, code);
  }
  static Floats square(Ints code) { return (to_floats(code) + 1.0f) * 0.0625f; }

  static Ints encode_mean(Floats x) {
    const Floats a = floats_of(bits_of(x) & 0x7fffffff);
    Ints passed{};
    for (float bound : {0.00275f, 0.019f, 0.055f, 0.145f, 0.325f, 0.55f, 0.775f, 0.94375f})
      passed -= a >= bound;
    return signed_code(x, passed, zero);
  }
  static Ints encode_square(Floats x) { return max(truncate(x * 16.0f - 0.5f), Ints{}); }
};

}  // namespace ebb::simd
