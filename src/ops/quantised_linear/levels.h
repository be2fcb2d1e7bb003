// The values that codes stand for, before the scale.
#pragma once

#include <array>

#include "ebb/quantised.h"

namespace ebb {

// NormalFloat with four bits: quantiles of the normal distribution, with an exact zero (Dettmers et
// al., QLoRA; the numbers are those of bitsandbytes).
inline constexpr std::array<float, 16> nf4_levels{
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// int4: codes 1 to 15 stand for -7 to 7, as the encoder uses them; 0 for -8.
inline constexpr std::array<float, 16> int4_levels{-8, -7, -6, -5, -4, -3, -2, -1,
                                                   0,  1,  2,  3,  4,  5,  6,  7};

// int8: code c stands for c - 128.
inline constexpr int int8_zero = 128;
inline constexpr int scale_zero = 128;  // of scales in 8 bits

// The largest level that the encoder uses: a block's scale is its largest magnitude divided by it.
constexpr float top_level(LowBits kind) {
  return kind == LowBits::int8 ? 127.0f : kind == LowBits::int4 ? 7.0f : 1.0f;
}

constexpr const std::array<float, 16>& four_bit_levels(LowBits kind) {
  return kind == LowBits::int4 ? int4_levels : nf4_levels;
}

}  // namespace ebb
