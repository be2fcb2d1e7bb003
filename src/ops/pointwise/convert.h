// Conversions between dtypes, one element at a time and in runs.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/machine_half.h"
#include "ops/pointwise/row.h"

namespace ebb {

// Value conversion: to integers by truncation, saturating, NaN to 0; to bool by comparison with
// zero.
template <class To, class From>
inline To convert(From x) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From high = static_cast<From>(std::numeric_limits<To>::max());
    if (x != x) return 0;
    return x <= low ? std::numeric_limits<To>::min()
                    : (x >= high ? std::numeric_limits<To>::max() : static_cast<To>(x));
  } else {
    return static_cast<To>(x);
  }
}

// Whether a number of this dtype can be `value` exactly. Every floating dtype has NaN.
bool holds(DType dtype, double value);
// Whether a finite number becomes infinite in a floating dtype.
bool overflows(DType dtype, double value);

// Rounds floats in place to values that float16 or bfloat16 can hold.
void round_to_half(float* values, std::int64_t count);
void round_to_bfloat16(float* values, std::int64_t count);

// Contiguous conversion between half storage and float, vectorised.
void widen(const MachineHalf* from, float* to, std::int64_t count);
void widen(const BFloat16* from, float* to, std::int64_t count);
void narrow(const float* from, MachineHalf* to, std::int64_t count);
void narrow(const float* from, BFloat16* to, std::int64_t count);

// Moves `count` elements of `dtype` that lie `stride` elements apart into a tile (half types
// widen).
using GatherFunction = void (*)(const std::byte* from, std::int64_t stride, void* tile,
                                std::int64_t count);
GatherFunction gather_tile(DType dtype);

// Writes a tile back to contiguous storage of `dtype` (half types narrow).
using StoreFunction = void (*)(const void* tile, std::byte* to, std::int64_t count);
StoreFunction store_tile(DType dtype);

// Tile to tile, from dtype to dtype; results for half dtypes still need rounding.
TileFunction cast_tile(DType from, DType to);

}  // namespace ebb
