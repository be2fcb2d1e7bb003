// Convolutions by cuDNN.
#pragma once

#include <memory>

#include "ops/conv2d/conv2d.h"

namespace ebb::cuda {

// The most workspace a convolution may use; what it does use is known once it is bound.
inline constexpr Bytes conv_workspace_limit = 128_MiB;

// One of the three convolutions of a geometry, by an algorithm that gives the same bits each time.
// float32 is multiplied as such unless TF32 is allowed; half types are summed in float32.
class Convolution {
 public:
  // Without the device, as when only a plan is made, the workspace is the most there may be.
  Convolution(Device device, ConvKind kind, const ConvGeometry& geometry, DType dtype, bool tf32);

  Bytes workspace() const { return workspace_; }
  // The first two inputs of the op of that kind, and its output.
  void run(const KernelArgs& args, const void* first, const void* second, void* out) const;

 private:
  struct Bound;
  std::shared_ptr<const Bound> bound_;
  Bytes workspace_;
};

}  // namespace ebb::cuda
