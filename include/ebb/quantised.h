// Weights in 8 or 4 bits, for parameters that are not trained. A matrix (rows, columns) is cut into
// blocks along its rows; each block has a scale, and each element a code that picks a level:
// value = level[code] × scale. Codes and scales are packed into one tensor of bytes, a variable
// like any other. Products read it as it is stored.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/tensor.h"

namespace ebb {

enum class LowBits : std::uint8_t {
  int8,  // 255 levels at equal distances
  int4,  // 15 levels at equal distances
  nf4,   // 16 levels: quantiles of the normal distribution, as QLoRA's NormalFloat
};
std::string_view name(LowBits kind);  // "int8", "int4", "nf4"
// The kind of that name. Throws a ValueError that lists all names.
LowBits low_bits_by_name(std::string_view name);

// How a matrix is packed. First come the codes, row by row: a byte each, or two to a byte with the
// first in the lower half. Then come the scales, one float32 for each block, row by row. With
// `scales_in_8_bits` (double quantisation) a scale is a byte instead, and a float32 for each 256
// scales and one offset follow. Each part begins at a multiple of 16 bytes.
struct Encoding {
  LowBits kind = LowBits::nf4;
  std::int64_t block = 64;  // elements with one scale; a power of two from 16 to 1024
  bool scales_in_8_bits = true;
  std::int64_t rows = 0, columns = 0;

  // The usual one: blocks of 128 with float32 scales for int8; blocks of 32 (int4) or 64 (nf4)
  // with scales in 8 bits.
  static Encoding usual(LowBits kind, std::int64_t rows, std::int64_t columns);

  int bits() const { return kind == LowBits::int8 ? 8 : 4; }
  std::int64_t row_bytes() const { return bits() == 8 ? columns : (columns + 1) / 2; }
  std::int64_t blocks_in_row() const { return (columns + block - 1) / block; }
  std::int64_t scales() const { return rows * blocks_in_row(); }
  std::int64_t groups() const { return (scales() + group_size - 1) / group_size; }
  // Where the parts begin, and the size of all.
  std::int64_t scales_at() const { return aligned(rows * row_bytes()); }
  std::int64_t offset_at() const { return aligned(scales_at() + scales()); }  // then the groups
  std::int64_t bytes() const {
    return scales_in_8_bits ? offset_at() + 4 * (1 + groups()) : scales_at() + 4 * scales();
  }
  TensorType packed() const { return {{bytes()}, u8}; }

  static constexpr std::int64_t group_size = 256;  // scales that share a float32
  bool operator==(const Encoding&) const = default;
  void visit(auto&& field) {
    static constexpr std::string_view names[] = {"int8", "int4", "nf4"};
    field.choice("kind", kind, names);
    field("block", block);
    field("scales_in_8_bits", scales_in_8_bits);
    field("rows", rows);
    field("columns", columns);
  }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }
};

// A weight that is stored packed: how, and whether the model's own matrix is its transpose.
struct PackedWeight {
  Encoding encoding;
  bool transposed = false;

  Shape shape() const {
    const Encoding& e = encoding;
    return transposed ? Shape{e.columns, e.rows} : Shape{e.rows, e.columns};
  }
};

// A matrix in packed form, and back. Neither has a gradient.
Tensor quantise(const Tensor& matrix, const Encoding& encoding);
Tensor dequantise(const Tensor& packed, const Encoding& encoding, DType dtype);

// x (..., columns) · Wᵀ + bias → (..., rows), for a packed W. The gradient in x reads the same
// bytes; W has none.
Tensor quantised_linear(const Tensor& x, const Tensor& packed, const Encoding& encoding,
                        const Tensor& bias = {});

}  // namespace ebb
