// The two 8-bit floating-point formats of GPUs (OCP 8-bit Floating Point Specification 1.0), and
// the power of two by which a tensor's numbers are divided so that they fit. Everything here works
// on bits, so that it is exact and the same on every device.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace ebb {

// Sign, exponent and mantissa bits: 1, 4, 3 and 1, 5, 2.
enum class Fp8 : std::uint8_t {
  e4m3,  // up to 448; no infinity, and one NaN of each sign
  e5m2,  // up to 57344; infinities and NaN as in IEEE 754
};

struct Fp8Format {
  int mantissa_bits, bias;
  std::uint8_t largest;  // the code of the largest finite number, which is 1.75 · 2^top
  int top;
};
constexpr Fp8Format fp8_format(Fp8 kind) {
  return kind == Fp8::e4m3 ? Fp8Format{3, 7, 0x7e, 8} : Fp8Format{2, 15, 0x7b, 15};
}
inline constexpr std::uint8_t fp8_nan = 0x7f;  // in both formats

// The bits of the float32 number whose product with the codes gives back a tensor's numbers. It is
// the smallest power of two for which no number is above the largest code. `largest`: the bits of
// the largest magnitude in the tensor; if that is infinite or NaN, the result is NaN.
constexpr std::uint32_t fp8_step_bits(Fp8 kind, std::uint32_t largest) {
  if (largest >= 0x7f800000u) return 0x7fc00000u;
  if (largest == 0) return 0x3f800000u;
  const int exponent = static_cast<int>(largest >> 23) - 127 +
                       ((largest & 0x7fffffu) > 0x600000u ? 1 : 0) - fp8_format(kind).top;
  // A normal number, as its inverse has to be.
  return static_cast<std::uint32_t>((exponent < -126 ? -126 : exponent) + 127) << 23;
}

// The bits of 1 / step.
constexpr std::uint32_t fp8_inverse_step_bits(std::uint32_t step) {
  return step >= 0x7f800000u ? step : (254u << 23) - step;
}

// Rounded to nearest, halfway cases to even; numbers beyond the largest, infinity too, become the
// largest.
inline std::uint8_t fp8_encode(Fp8 kind, float x) {
  const Fp8Format f = fp8_format(kind);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>(bits >> 31 << 7);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return fp8_nan;
  const int dropped = 23 - f.mantissa_bits;
  const std::uint32_t bias = static_cast<std::uint32_t>(127 - f.bias) << 23;
  const std::uint32_t largest = (static_cast<std::uint32_t>(f.largest) << dropped) + bias;
  if (magnitude >= largest) return sign | f.largest;
  std::uint32_t code;
  if (magnitude < bias + (1u << 23)) {  // below the smallest normal number
    // A float in whose last place is the smallest code: the addition rounds.
    const auto unit = static_cast<std::uint32_t>(127 + 1 - f.bias - f.mantissa_bits + 23) << 23;
    code =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(unit)) -
        unit;
  } else {
    const std::uint32_t odd = magnitude >> dropped & 1u;
    code = (magnitude - bias + (1u << (dropped - 1)) - 1u + odd) >> dropped;
  }
  return static_cast<std::uint8_t>(sign | code);
}

// What all codes of a format stand for.
inline std::array<float, 256> fp8_values(Fp8 kind) {
  const Fp8Format f = fp8_format(kind);
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned magnitude = code & 0x7fu, mantissa = magnitude & ((1u << f.mantissa_bits) - 1u),
                   exponent = magnitude >> f.mantissa_bits;
    float value;
    if (magnitude > f.largest) {
      const bool infinite = kind == Fp8::e5m2 && mantissa == 0;
      value = std::bit_cast<float>(infinite ? 0x7f800000u : 0x7fc00000u);
    } else {
      // The mantissa, with the leading 1 of normal numbers, times a power of two.
      const unsigned whole = exponent == 0 ? mantissa : mantissa + (1u << f.mantissa_bits);
      const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - f.bias - f.mantissa_bits;
      value = static_cast<float>(whole) *
              std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
    }
    values[code] = code < 128 ? value : -value;
  }
  return values;
}

}  // namespace ebb
