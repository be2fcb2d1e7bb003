// The arguments of one call of a kernel, or of the several calls that a group runs in one launch:
// the blocks with blockIdx.y == i run call i. They are passed as kernel arguments, so that a
// captured step needs no table in device memory.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "ops/group/group.h"

namespace ebb::cuda {

// `most` is 1 or GroupOp::most_calls. Kernels take it as `const __grid_constant__`, so that
// indexing it makes no local copy.
template <class C, int most>
struct Calls {
  static_assert(sizeof(C) * most <= 24 * 1024, "leaves no room for a kernel's other arguments");
  C calls[most];

  __device__ C own() const {
    if constexpr (most == 1)
      return calls[0];
    else
      return calls[blockIdx.y];
  }
};

// A grid for calls that need `x` blocks at most.
inline dim3 grid_of_calls(std::int64_t x, std::size_t calls) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(calls));
}

}  // namespace ebb::cuda
