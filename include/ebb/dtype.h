// Element types of tensors.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/bytes.h"

namespace ebb {

enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  int64,
  int32,
  uint8,
  boolean
};

inline constexpr DType f64 = DType::float64;
inline constexpr DType f32 = DType::float32;
inline constexpr DType f16 = DType::float16;
inline constexpr DType bf16 = DType::bfloat16;
inline constexpr DType i64 = DType::int64;
inline constexpr DType i32 = DType::int32;
inline constexpr DType u8 = DType::uint8;
inline constexpr DType b8 = DType::boolean;  // one byte, 0 or 1

inline constexpr DType all_dtypes[] = {f64, f32, f16, bf16, i64, i32, u8, b8};

std::string_view name(DType dtype);  // "float32"
DType parse_dtype(std::string_view name);
Bytes size_of(DType dtype);  // of one element
bool is_floating(DType dtype);
bool is_half(DType dtype);     // float16 or bfloat16
bool is_integer(DType dtype);  // int64, int32 or uint8; not boolean

}  // namespace ebb
