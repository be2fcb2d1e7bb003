// One elementwise function: a row of the table that serves single ops, fused chains and their
// kernels.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "ebb/dtype.h"
#include "ebb/random.h"

namespace ebb {

inline constexpr int max_pointwise_arity = 3;

// The numbers a generator row carries (full, uniform, normal, dropout mask).
struct Immediates {
  double a = 0.0, b = 0.0;
  RandomKey key;
  bool operator==(const Immediates&) const = default;
  void visit(auto&& field) {
    field("a", a);
    field("b", b);
    field("key", key.value);
  }
};

// A run of consecutive elements of one function. Pointers are to values of the tile type; `begin`
// is the first element's index in the whole tensor, for rows that depend on it.
struct TileArgs {
  std::array<const void*, max_pointwise_arity> in{};
  void* out = nullptr;
  std::int64_t count = 0;
  std::int64_t begin = 0;
  const Immediates* immediates = nullptr;
  RandomState random;
};
using TileFunction = void (*)(const TileArgs&);

// The type a dtype's elements have inside a tile: half types are computed in float and rounded
// after every function, so that fusing changes no bit.
enum class TileType : std::uint8_t { float64, float32, int64, int32, byte };
inline constexpr int tile_types = 5;
constexpr TileType tile_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return TileType::float64;
    case DType::int64:
      return TileType::int64;
    case DType::int32:
      return TileType::int32;
    case DType::uint8:
    case DType::boolean:
      return TileType::byte;
    default:
      return TileType::float32;
  }
}
constexpr std::int64_t tile_type_size(TileType type) {
  constexpr std::int64_t sizes[] = {8, 4, 8, 4, 1};
  return sizes[static_cast<int>(type)];
}

struct PointwiseRow {
  std::string_view name;
  int arity = 0;
  // By the tile type of the last operand (of the output, for generators); null where not defined.
  std::array<TileFunction, tile_types> tiles{};
  // The same as an expression in CUDA C++ (see source_cuda.h): operands are a, b and c; T is the
  // type of the last operand and R that of the result; generators know their numbers n, the
  // element's index and the random state.
  std::string_view cuda = {};
  // Time per element divided by that of an addition, both in the first-level cache; measured on
  // float32 with AVX-512 (ebb_clock_bench --rows).
  double work = 1.0;
};

}  // namespace ebb
