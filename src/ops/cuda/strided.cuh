// Positions in strided tensors.
#pragma once

#include <cstdint>

#include "ebb/shape.h"

namespace ebb::cuda {

// a / b of numbers that are not negative. A 64-bit division takes a GPU about a hundred
// instructions, so small numbers use 32-bit division.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// Some axes of a tensor, as kernels take them.
struct AxisSteps {
  int rank = 0;
  std::int64_t extent[max_rank] = {}, stride[max_rank] = {};

  AxisSteps() = default;
  AxisSteps(const Shape& shape, const Strides& strides) : rank(shape.rank()) {
    for (int i = 0; i < rank; ++i) extent[i] = shape[i], stride[i] = strides[i];
  }

  // Elements from the first to the one with row-major number `index`.
  __device__ std::int64_t offset(std::int64_t index) const {
    std::int64_t result = 0;
    for (int i = rank - 1; i > 0; --i) {
      const std::int64_t next = quotient(index, extent[i]);
      result += (index - next * extent[i]) * stride[i];
      index = next;
    }
    return rank > 0 ? result + index * stride[0] : result;
  }
};

}  // namespace ebb::cuda
