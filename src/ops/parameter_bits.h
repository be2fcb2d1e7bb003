// The bits of parameters in forms other than plain, for kernels on any device.
#pragma once

#include <bit>
#include <cstdint>

#include "ebb/half.h"
#include "ebb/parameter_form.h"

namespace ebb {

// Stochastic rounding to bfloat16; `chance` is uniform in [0, 2^16).
constexpr BFloat16 round_by_chance(float value, std::uint32_t chance) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  BFloat16 rounded;
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const std::uint32_t quiet = (bits & 0x007fffffu) != 0 ? 0x00400000u : 0u;  // NaN stays NaN
  rounded.bits = static_cast<std::uint16_t>((finite ? bits + chance : bits | quiet) >> 16);
  return rounded;
}

// A float32 as the bfloat16 nearest to it and the 16 bits below. Halfway values round away from
// zero, so that the lower bits alone determine the direction of rounding, and both parts together
// restore the float32.
struct CompletedFloat {
  std::uint16_t upper, lower;

  static constexpr CompletedFloat of_bits(std::uint32_t bits) {
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    if (nan) bits = 0x7fc00000u;
    return {static_cast<std::uint16_t>((bits + 0x8000u) >> 16), static_cast<std::uint16_t>(bits)};
  }
  constexpr std::uint32_t bits() const {
    const std::uint32_t carried = lower >> 15;
    return ((static_cast<std::uint32_t>(upper) - carried) << 16) | lower;
  }
};

// The upper 24 bits of a float32, rounded stochastically with `chance` in [0, 2^8).
constexpr std::uint32_t rounded_to_24_bits(std::uint32_t bits, std::uint32_t chance) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return finite ? (bits + chance) & ~0xffu : bits;
}

}  // namespace ebb
