#pragma once

#include "ops/cross_entropy/cross_entropy.h"

namespace ebb {

struct LinearCrossEntropyAttributes {
  CrossEntropyAttributes loss;
  std::int64_t chunk = 0;  // rows whose logits exist at a time; 0: chosen by the kernel
  bool operator==(const LinearCrossEntropyAttributes&) const = default;
  void visit(auto&& field) {
    loss.visit(field);
    field("chunk", chunk);
  }
};

// About 32 MiB of logits in the type they are summed in, and at least 64 rows: enough for products
// on a processor to run at full speed. Chunks have nearly equal size, because a short last one
// would be slow.
std::int64_t chunk_rows(const LinearCrossEntropyAttributes& a, std::int64_t rows,
                        std::int64_t classes, DType dtype);

// The backward op returns the requested gradients, x's first, so that a frozen weight takes no
// memory.
struct LinearCrossEntropyGradAttributes {
  LinearCrossEntropyAttributes forward;
  bool x = true, weight = true;
  bool operator==(const LinearCrossEntropyGradAttributes&) const = default;
  void visit(auto&& field) {
    forward.visit(field);
    field("x", x);
    field("weight", weight);
  }
};

// Operands in order: those of forward, and what backward and both together read after them, where
// `grad` is the gradient of the losses.
struct LinearCrossEntropy {
  enum Input : int { x, weight, targets };
  enum Output : int { losses, logsumexp };
};
struct LinearCrossEntropyGrad {
  enum Input : int { x, weight, targets, logsumexp, grad };
};
struct LinearCrossEntropyJoint {
  enum Input : int { x, weight, targets, grad };
};

const Op& linear_cross_entropy_op();
const Op& linear_cross_entropy_grad_op();

Kernel bind_linear_cross_entropy_cpu(const KernelRequest& request,
                                     const LinearCrossEntropyAttributes& a);
Kernel bind_linear_cross_entropy_cuda(const KernelRequest& request,
                                      const LinearCrossEntropyAttributes& a);
Kernel bind_linear_cross_entropy_grad_cpu(const KernelRequest& request,
                                          const LinearCrossEntropyGradAttributes& a);
Kernel bind_linear_cross_entropy_grad_cuda(const KernelRequest& request,
                                           const LinearCrossEntropyGradAttributes& a);

// Forward and backward together, for a gradient of the losses that does not depend on them: (x,
// weight, targets, gradient of the losses) → losses, and the gradients that are asked for. Made by
// the pass join_loss from the two ops above. In one walk the logits are computed once; on CUDA,
// where that takes more memory, two walks are an alternative.
struct LinearCrossEntropyJointAttributes {
  LinearCrossEntropyGradAttributes backward;
  int walks = 1;
  bool operator==(const LinearCrossEntropyJointAttributes&) const = default;
  void visit(auto&& field) {
    backward.visit(field);
    field("walks", walks);
  }
};
const Op& linear_cross_entropy_joint_op();
Kernel bind_linear_cross_entropy_joint_cpu(const KernelRequest& request,
                                           const LinearCrossEntropyJointAttributes& a);
Kernel bind_linear_cross_entropy_joint_cuda(const KernelRequest& request,
                                            const LinearCrossEntropyJointAttributes& a);
Kernel bind_linear_cross_entropy_one_walk_cuda(const KernelRequest& request,
                                               const LinearCrossEntropyGradAttributes& a);

}  // namespace ebb
