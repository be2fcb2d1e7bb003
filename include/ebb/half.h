// float16 and bfloat16 as storage types: two bytes that convert to and from float, rounding to
// nearest even. Arithmetic happens in float. The code is the same for every processor, so that a
// program may be compiled with other flags than the library.
#pragma once

#include <bit>
#include <cstdint>

namespace ebb {

struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  BFloat16(float value) {
    std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    // A NaN whose payload sits in the low half would round to infinity: keep it quiet instead.
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits =
        static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  Half(float value) : bits(encode(value)) {}
  operator float() const { return decode(bits); }

  static constexpr std::uint16_t encode(float value) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)  // NaN: keep it quiet, with the top of its payload
      return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u)
      return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {  // subnormal in float16: let float addition do the rounding
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign |
                                        (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    return static_cast<std::uint16_t>(
        sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  }
  static constexpr float decode(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu,
                        mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero and subnormals: mantissa times 2^-24
      const float value = static_cast<float>(mantissa) * 0x1p-24f;
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
    }
    const std::uint32_t widened = exponent == 31 ? 0xffu : exponent + 112u;
    const std::uint32_t quiet = exponent == 31 && mantissa != 0 ? 0x400000u : 0u;  // NaN
    return std::bit_cast<float>(sign | (widened << 23) | quiet | (mantissa << 13));
  }
};

}  // namespace ebb
