#include "ops/pairs/pattern.h"

#include <fmt/core.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace ebb {
namespace {

// Finds zeros of floating types by their bits: all except the sign are clear.
template <class Bits>
std::optional<std::string> fault_of(std::span<const std::byte> matrix, const Shape& shape,
                                    bool transposed) {
  constexpr Bits all_but_sign = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  const std::int64_t outputs = shape[transposed ? 1 : 0], inputs = shape[transposed ? 0 : 1],
                     output_stride = transposed ? 1 : inputs,
                     input_stride = transposed ? outputs : 1;
  const auto is_zero = [&](std::int64_t output, std::int64_t input) {
    Bits bits;
    const auto at = static_cast<std::size_t>(output * output_stride + input * input_stride);
    std::memcpy(&bits, matrix.data() + at * sizeof bits, sizeof bits);
    return (bits & all_but_sign) == 0;
  };
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < inputs; i += 4) {
      int count = 0;
      for (std::int64_t j = i; j < i + 4; ++j) count += !is_zero(o, j);
      if (count > 2)
        return fmt::format(
            "the pattern 2:4 has at most two weights other than zero in each four, but output {} "
            "has {} in its inputs {} to {}",
            o, count, i, i + 3);
    }
  return {};
}

}  // namespace

std::optional<std::string> pattern_fault(std::span<const std::byte> matrix, const TensorType& type,
                                         bool transposed) {
  switch (size_of(type.dtype).count) {
    case 2:
      return fault_of<std::uint16_t>(matrix, type.shape, transposed);
    case 4:
      return fault_of<std::uint32_t>(matrix, type.shape, transposed);
    default:
      return fault_of<std::uint64_t>(matrix, type.shape, transposed);
  }
}

std::optional<std::string> positions_fault(std::span<const std::byte> positions,
                                           std::int64_t outputs, std::int64_t inputs) {
  const std::int64_t row_bytes = (inputs + 7) / 8;
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < 8 * row_bytes; i += 4) {
      const auto byte =
          std::to_integer<unsigned>(positions[static_cast<std::size_t>(o * row_bytes + i / 8)]);
      const int count = std::popcount(byte >> (i % 8) & 15u), expected = i < inputs ? 2 : 0;
      if (count != expected)
        return fmt::format(
            "of output {}, {} of the bits for inputs {} to {} must be set, but {} are", o, expected,
            i, i + 3, count);
    }
  return {};
}

}  // namespace ebb
