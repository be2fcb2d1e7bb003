#pragma once

#include "ops/cross_entropy/cross_entropy.h"

namespace ebb {

struct LinearCrossEntropyAttributes {
  CrossEntropyAttributes loss;
  std::int64_t chunk = 1;  // rows whose logits exist at a time
  bool operator==(const LinearCrossEntropyAttributes&) const = default;
  void visit(auto&& field) const {
    loss.visit(field);
    field("chunk", chunk);
  }
};

// The backward op gives the gradients that are asked for, x's first: a frozen weight costs no
// bytes.
struct LinearCrossEntropyGradAttributes {
  LinearCrossEntropyAttributes forward;
  bool x = true, weight = true;
  bool operator==(const LinearCrossEntropyGradAttributes&) const = default;
  void visit(auto&& field) const {
    forward.visit(field);
    field("x", x);
    field("weight", weight);
  }
};

Kernel bind_linear_cross_entropy_cpu(const KernelRequest& request,
                                     const LinearCrossEntropyAttributes& a);
Kernel bind_linear_cross_entropy_cuda(const KernelRequest& request,
                                      const LinearCrossEntropyAttributes& a);
Kernel bind_linear_cross_entropy_grad_cpu(const KernelRequest& request,
                                          const LinearCrossEntropyGradAttributes& a);
Kernel bind_linear_cross_entropy_grad_cuda(const KernelRequest& request,
                                           const LinearCrossEntropyGradAttributes& a);

}  // namespace ebb
