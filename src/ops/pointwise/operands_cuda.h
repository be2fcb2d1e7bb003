// How a CUDA kernel accesses the operands of a pointwise program: axes are merged if all operands
// allow it, and a thread processes a group of neighbouring elements.
#pragma once

#include <optional>

#include "ops/pointwise/source_cuda.h"

namespace ebb {

struct PointwiseOperands {
  PointwiseAccess access;
  PointwiseParameters parameters{};  // without addresses

  // Groups of as many elements as 16-byte accesses can move; or, where a width is given, of that
  // many, and of one where operands do not allow it.
  PointwiseOperands(const KernelRequest& request, const FusedAttributes& program,
                    std::optional<int> width = {});

  // With the addresses of inputs and of the random state.
  PointwiseParameters at(const KernelArgs& args) const;
};

}  // namespace ebb
