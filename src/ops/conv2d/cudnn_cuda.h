// Convolutions by cuDNN.
#pragma once

#include <memory>
#include <optional>

#include "ops/conv2d/conv2d.h"

namespace ebb::cuda {

// The workspace limit of a convolution; its actual workspace is known after binding.
inline constexpr Bytes conv_workspace_limit = 128_MiB;

// One of the three convolutions of a geometry, by an algorithm that gives the same bits each time.
// float32 is multiplied as such unless TF32 is allowed; half types are summed in float32.
class Convolution {
 public:
  // Empty if cuDNN has no such algorithm for this image layout. If the tuning does not know, a plan
  // assumes that there is one whose workspace is the limit.
  static std::optional<Convolution> find(const Target& target, ConvKind kind,
                                         const ConvGeometry& geometry, DType dtype);

  Bytes workspace() const { return workspace_; }
  // The first two inputs of the op of that kind, and its output.
  void run(const KernelArgs& args, const void* first, const void* second, void* out) const;

 private:
  struct Bound;
  Convolution(std::shared_ptr<const Bound> bound, Bytes workspace)
      : bound_(std::move(bound)), workspace_(workspace) {}

  std::shared_ptr<const Bound> bound_;  // null unless it is to run
  Bytes workspace_;
};

}  // namespace ebb::cuda
