// Packing and unpacking on the CPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "ebb/quantised.h"

namespace ebb {

// The parts of packed bytes.
class PackedMatrix {
 public:
  PackedMatrix(const Encoding& encoding, const std::uint8_t* bytes);

  const Encoding& encoding() const { return e_; }
  const std::uint8_t* codes(std::int64_t row) const { return codes_ + row * row_bytes_; }
  float scale(std::int64_t row, std::int64_t block) const {
    const std::int64_t i = row * blocks_ + block;
    return small_ ? std::fma(groups_[i / Encoding::group_size], small_difference(i), offset_)
                  : scales_[i];
  }

  // The scales of `count` blocks, starting with block `first` of a row; they may continue in later
  // rows.
  void scales(std::int64_t row, std::int64_t first, std::int64_t count, float* to) const;

  // Rows [row, row + rows), columns [column, column + columns), row by row. `column` is a multiple
  // of the block.
  void unpack(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
              float* to) const;
  void unpack(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
              double* to) const;

 private:
  float small_difference(std::int64_t i) const;
  template <class T>
  void unpack_row(std::int64_t row, std::int64_t column, std::int64_t columns, T* to) const;

  Encoding e_;
  std::int64_t row_bytes_, blocks_;
  const std::uint8_t *codes_, *small_ = nullptr;  // small: scales in 8 bits
  const float *scales_ = nullptr, *groups_ = nullptr;
  float offset_ = 0.0f;
};

// Packs a matrix whose rows arrive one after the other.
//
// A block that holds an infinity or NaN gets the scale NaN, so that its values become NaN too.
class Packer {
 public:
  // `bytes` are those of the whole packed matrix; `scales` has room for one float of each block.
  Packer(const Encoding& encoding, std::uint8_t* bytes, float* scales);

  void rows(const float* values, std::int64_t first, std::int64_t count);
  // After all rows: writes the scales.
  void finish();

 private:
  void row(const float* values, std::int64_t row);

  Encoding e_;
  std::uint8_t* bytes_;
  float* scales_;
};

}  // namespace ebb
