#include "ops/quantised_linear/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/parallel.h"
#include "ops/quantised_linear/code_lanes.h"
#include "ops/quantised_linear/levels.h"

namespace ebb {
namespace {

// Midpoints between neighbouring levels of nf4: from there on a value takes the upper level.
constexpr std::array<float, 15> nf4_midpoints = [] {
  std::array<float, 15> result{};
  for (std::size_t i = 0; i < 15; ++i) result[i] = (nf4_levels[i] + nf4_levels[i + 1]) / 2;
  return result;
}();

// The code of x, a value divided by the scale. Values beyond the ends take the end's code.
template <LowBits kind>
int code_of(float x) {
  if constexpr (kind == LowBits::nf4) {
    int code = 0;
    for (const float midpoint : nf4_midpoints) code += x >= midpoint ? 1 : 0;
    return code;
  } else {
    constexpr float top = top_level(kind);
    const float level = std::nearbyint(std::min(std::max(x, -top), top));
    return static_cast<int>(level) + (kind == LowBits::int8 ? int8_zero : 8);
  }
}

// Codes of one block, and its scale.
template <LowBits kind>
float pack_block(const float* values, std::int64_t count, std::uint8_t* codes) {
  // Bits of magnitudes are in the order of the numbers, with infinities and NaN above all others.
  // The largest integer is found in vectors; the largest float is not, because of NaN.
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  const bool finite = most < 0x7f800000;
  const float scale = std::bit_cast<float>(most) / top_level(kind);
  // A scale that rounds to zero would have an infinite inverse: such a block is stored as zero.
  const float inverse = finite && scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
  const auto code = [&](std::int64_t i) {
    return static_cast<std::uint8_t>(code_of<kind>(inverse == 0.0f ? 0.0f : values[i] * inverse));
  };
  if constexpr (kind == LowBits::int8) {
    for (std::int64_t i = 0; i < count; ++i) codes[i] = code(i);
  } else {
    for (std::int64_t i = 0; i < count; i += 2) {
      const int upper = i + 1 < count ? code(i + 1) : 0;
      codes[i / 2] = static_cast<std::uint8_t>(code(i) | (upper << 4));
    }
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  return inverse == 0.0f ? 0.0f : scale;
}

}  // namespace

PackedMatrix::PackedMatrix(const Encoding& e, const std::uint8_t* bytes)
    : e_(e), row_bytes_(e.row_bytes()), blocks_(e.blocks_in_row()), codes_(bytes) {
  if (!e.scales_in_8_bits) {
    scales_ = reinterpret_cast<const float*>(bytes + e.scales_at());
    return;
  }
  small_ = bytes + e.scales_at();
  const float* all = reinterpret_cast<const float*>(bytes + e.offset_at());
  offset_ = all[0], groups_ = all + 1;
}

float PackedMatrix::small_difference(std::int64_t i) const {
  return static_cast<float>(static_cast<int>(small_[i]) - scale_zero);
}

void PackedMatrix::scales(std::int64_t row, std::int64_t first, std::int64_t count,
                          float* to) const {
  const std::int64_t begin = row * blocks_ + first, end = begin + count;
  if (!small_) {
    std::copy(scales_ + begin, scales_ + end, to);
    return;
  }
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t group = i / Encoding::group_size,
                       stop = std::min(end, (group + 1) * Encoding::group_size);
    const float step = groups_[group];
    const std::uint8_t* small = small_ + i;
    const std::int64_t size = stop - i;
    for (std::int64_t j = 0; j < size; ++j)  // a loop without exits, for vectors
      to[j] = std::fma(step, static_cast<float>(static_cast<int>(small[j]) - scale_zero), offset_);
    i = stop, to += size;
  }
}

template <class T>
void PackedMatrix::unpack_row(std::int64_t row, std::int64_t column, std::int64_t columns,
                              T* to) const {
  const std::uint8_t* from = codes(row);
  for (std::int64_t at = column; at < column + columns; at += e_.block, to += e_.block) {
    const std::int64_t count = std::min(e_.block, column + columns - at);
    const float scale = this->scale(row, at / e_.block);
    if constexpr (std::is_same_v<T, float>)
      unpack_block(e_.kind, from + (e_.bits() == 8 ? at : at / 2), count, scale, to);
    else
      for (std::int64_t i = 0; i < count; ++i)
        to[i] = static_cast<T>(level_at(e_.kind, from, at + i)) * static_cast<T>(scale);
  }
}

void PackedMatrix::unpack(std::int64_t row, std::int64_t rows, std::int64_t column,
                          std::int64_t columns, float* to) const {
  parallel_for(rows, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(columns, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r)
                   unpack_row(row + r, column, columns, to + r * columns);
               });
}

void PackedMatrix::unpack(std::int64_t row, std::int64_t rows, std::int64_t column,
                          std::int64_t columns, double* to) const {
  for (std::int64_t r = 0; r < rows; ++r) unpack_row(row + r, column, columns, to + r * columns);
}

Packer::Packer(const Encoding& encoding, std::uint8_t* bytes, float* scales)
    : e_(encoding), bytes_(bytes), scales_(scales) {
  // Bytes between the parts are zero, so that equal matrices have equal bytes.
  const std::int64_t codes = e_.rows * e_.row_bytes();
  std::fill(bytes_ + codes, bytes_ + e_.scales_at(), std::uint8_t{0});
}

void Packer::row(const float* values, std::int64_t row) {
  std::uint8_t* codes = bytes_ + row * e_.row_bytes();
  float* scales = scales_ + row * e_.blocks_in_row();
  for (std::int64_t at = 0; at < e_.columns; at += e_.block) {
    const std::int64_t count = std::min(e_.block, e_.columns - at);
    std::uint8_t* to = codes + (e_.bits() == 8 ? at : at / 2);
    switch (e_.kind) {
      case LowBits::int8:
        *scales++ = pack_block<LowBits::int8>(values + at, count, to);
        break;
      case LowBits::int4:
        *scales++ = pack_block<LowBits::int4>(values + at, count, to);
        break;
      case LowBits::nf4:
        *scales++ = pack_block<LowBits::nf4>(values + at, count, to);
        break;
    }
  }
}

void Packer::rows(const float* values, std::int64_t first, std::int64_t count) {
  parallel_for(count, std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(e_.columns, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t r = begin; r < end; ++r) row(values + r * e_.columns, first + r);
               });
}

void Packer::finish() {
  const std::int64_t count = e_.scales();
  if (!e_.scales_in_8_bits) {
    std::memcpy(bytes_ + e_.scales_at(), scales_, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(scales_[i]);
  const float offset = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0f;
  std::uint8_t* small = bytes_ + e_.scales_at();
  std::fill(small + count, bytes_ + e_.offset_at(), std::uint8_t{0});
  float* all = reinterpret_cast<float*>(bytes_ + e_.offset_at());
  all[0] = offset;
  for (std::int64_t group = 0; group < e_.groups(); ++group) {
    const std::int64_t begin = group * Encoding::group_size,
                       end = std::min(begin + Encoding::group_size, count);
    float largest = 0.0f;
    for (std::int64_t i = begin; i < end; ++i)
      largest = std::max(largest, std::abs(scales_[i] - offset));
    const float step = largest / 127.0f;
    all[1 + group] = step;
    for (std::int64_t i = begin; i < end; ++i) {
      const float level = step > 0.0f ? std::nearbyint((scales_[i] - offset) / step) : 0.0f;
      const float bounded = level >= -127.0f && level <= 127.0f ? level : 0.0f;  // NaN: 0
      small[i] = static_cast<std::uint8_t>(static_cast<int>(bounded) + scale_zero);
    }
  }
}

}  // namespace ebb
