// Codes of moments to floats and back, a register at a time and without tables in memory: the maps
// of maps.h written as arithmetic. Decoded values agree with the maps to 2e-6 of themselves; a
// value is encoded as the nearest map value, except that rounding may decide between two values if
// x lies within 1e-4 of their distance from the midpoint.
//
// In a dynamic map with seven decades, decade d, from 10^(d-7) to 10^(d-6), has `first` · 2^d
// values, where `first` is 1 in the signed map and 2 in the unsigned one. Inside a decade the
// values are equally spaced.
#pragma once

#include "ops/quantised_adam/lanes.h"

namespace ebb::simd {

// From codes to values. Values are numbered so that decade d starts at number `first` · 2^d. Then
// number + 1/2 has the decade as its floating-point exponent, and value = slope · number + start,
// with slope and start looked up by the exponent modulo 8.
struct Lines {
  Table8 slope, start;

  // 0 and 1 lie on one line, whose exponent is next to those of the decades.
  constexpr Lines(int first, double slope_of_rest, double start_of_rest) {
    for (int place = 0; place < 8; ++place)
      slope.set(place, slope_of_rest), start.set(place, start_of_rest);
    double unit = 1e-6;  // the upper end of the decade
    for (int d = 0; d < 7; ++d, unit *= 10.0) {
      const int exponent = d + first - 1, place = (127 + exponent) % 8;
      slope.set(place, 0.9 * unit / (1 << exponent));
      start.set(place, -0.8 * unit);
    }
  }

  Floats operator()(Floats number) const {
    const Ints exponent = bits_of(number) >> 23;
    return number * lookup(slope, exponent) + lookup(start, exponent);
  }
};

// From magnitudes to their index among the map's magnitudes: in decade d, the integer part of slope
// · x + start, at most `last`. The lowest decade extends down to 0, and 1 has an entry of its own.
struct Decades {
  Table8 lower, slope, start, last;

  constexpr explicit Decades(int first) {
    double unit = 1e-6;  // the upper end of the decade
    for (int d = 0; d < 7; ++d, unit *= 10.0) {
      const double values = first << d;
      slope.set(d, values / (0.9 * unit));
      start.set(d, values * 8.0 / 9.0 - (first - 1));
      last.set(d, 2.0 * values - first);
      // Halfway between the last value of the previous decade and the first value of this one.
      if (d > 0) lower.set(d, 0.1 * unit * (1.0 + 1.8 / values));
    }
    lower.set(7, 1.0 - 0.225 / (64 * first));
    start.set(7, 127 * first + 1), last.set(7, 127 * first + 1);
    // In the lowest decade, code 1 begins halfway from zero to the first value, and code 2, which
    // only the unsigned map has there, in the middle of the decade.
    const double one = first == 1 ? 0.275e-6 : 0.1625e-6, two = 0.55e-6;
    slope.set(0, 1.0 / (two - one));
    start.set(0, 1.0 - one / (two - one));
  }

  Ints operator()(Floats x) const {
    // A float's bits are approximately its logarithm. The guess is the right decade or the one
    // above.
    constexpr float log_of_2 = 0.30103f, shift = 6.0f - 127.0f * log_of_2 + 1.3f;
    const Ints guess = max(truncate(to_floats(bits_of(x)) * (log_of_2 * 0x1p-23f) + shift), all(0));
    const Ints d = x < lookup(lower, guess) ? guess - 1 : guess;
    return truncate(min(x * lookup(slope, d) + lookup(start, d), lookup(last, d)));
  }
};

// Codes of a signed map lie symmetrically around `zero`, except that the largest positive one has
// no counterpart.
inline Ints signed_code(Floats x, Ints place, int zero) {
  return max(bits_of(x) < 0 ? -place : place, all(-zero)) + zero;
}

// Both maps dynamic with seven decades.
struct EightBits {
  static constexpr int bits = 8, block = 256, zero = 127;

  static Floats mean(Ints code) {
    static constexpr Lines lines(1, 0x1p-7, -0x1p-8);  // 0.5 stands for 0 and 128.5 for 1
    const Ints offset = code - zero;
    return floats_of(bits_of(lines(to_floats(magnitude(offset)) + 0.5f)) | (offset & sign_bit));
  }
  static Floats square(Ints code) {
    // 1.5 stands for 0 and 256.5 for 1: a slope of 1/255, with few enough digits for 0 to be exact.
    static constexpr Lines lines(2, 0x1.0101p-8, -0x1.81818p-8);
    return lines(to_floats(code) + 1.5f);
  }
  static Ints encode_mean(Floats x) {
    static constexpr Decades place(1);
    return signed_code(x, place(magnitude(x)), zero);
  }
  static Ints encode_square(Floats x) {
    static constexpr Decades place(2);
    return place(x);
  }
};

// A dynamic map with three decades for the mean, a linear one for the square.
struct FourBits {
  static constexpr int bits = 4, block = 128, zero = 7;

  static Floats mean(Ints code) {
    static constexpr Table16 map = {{-0.8875f, -0.6625f, -0.4375f, -0.2125f, -0.0775f, -0.0325f,
                                     -0.0055f, 0.0f, 0.0055f, 0.0325f, 0.0775f, 0.2125f, 0.4375f,
                                     0.6625f, 0.8875f, 1.0f}};
    return lookup(map, code);
  }
  static Floats square(Ints code) { return to_floats(code) * 0.0625f + 0.0625f; }
  static Ints encode_mean(Floats x) {
    const Floats a = magnitude(x);
    Ints passed = all(0);
    for (float bound : {0.00275f, 0.019f, 0.055f, 0.145f, 0.325f, 0.55f, 0.775f, 0.94375f})
      passed = a >= bound ? passed + 1 : passed;
    return signed_code(x, passed, zero);
  }
  static Ints encode_square(Floats x) { return max(truncate(x * 16.0f - 0.5f), all(0)); }
};

}  // namespace ebb::simd
