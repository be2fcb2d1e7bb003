#pragma once

#include "ebb/op.h"

namespace ebb {

struct ReduceAttributes {
  Axes axes;  // sorted, not negative
  bool keep = false;
  bool operator==(const ReduceAttributes&) const = default;
  void visit(auto&& field) const {
    field("axes", axes);
    field("keep", keep);
  }
};

const GroupOp& sum_squares_group_op();

Kernel bind_sum(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_sum_cuda(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_sum_squares(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_sum_squares_cuda(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_sum_squares_group_cuda(std::span<const KernelRequest> calls,
                                   std::span<const Attributes> attributes);
Kernel bind_max(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_max_cuda(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_min(const KernelRequest& request, const ReduceAttributes& attributes);
Kernel bind_min_cuda(const KernelRequest& request, const ReduceAttributes& attributes);

}  // namespace ebb
