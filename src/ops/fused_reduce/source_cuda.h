// The CUDA source of a reduction that evaluates its elements.
#pragma once

#include <string>

#include "ops/fused_reduce/fused_reduce.h"
#include "ops/pointwise/source_cuda.h"

namespace ebb {

struct FusedReduceAccess {
  enum class Walk : std::uint8_t { warps, blocks, columns };  // see ops/reduce/fold.cuh
  PointwiseAccess operands;  // groups of `width` elements, or of one where operands do not allow it
  int width = 1;             // elements of a slot
  Walk walk = Walk::warps;
};

// Where the results are written.
struct FusedReduceOutput {
  void* out = nullptr;
  void* partial = nullptr;  // (slices, results), null without slices
};

// Defines the kernel `fused_reduce`, which takes PointwiseParameters, cuda::fold::Problem and
// FusedReduceOutput.
std::string fused_reduce_source(const FusedReduceAttributes& attributes,
                                const FusedReduceAccess& access);

}  // namespace ebb
