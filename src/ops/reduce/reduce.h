#pragma once

#include <optional>

#include "ebb/op.h"

namespace ebb {

enum class ReduceKind : std::uint8_t { sum, sum_squares, max, min };
inline constexpr std::string_view reduce_kind_names[] = {"sum", "sum_squares", "max", "min"};
const Op& reduce_op(ReduceKind kind);
std::optional<ReduceKind> reduce_kind(const Op& op);  // nothing for an op that is no reduction

// Of results over elements of a dtype: integers are summed up in int64.
DType reduced_dtype(ReduceKind kind, DType dtype);

struct ReduceAttributes {
  Axes axes;  // sorted, not negative
  bool keep = false;
  bool operator==(const ReduceAttributes&) const = default;
  void visit(auto&& field) {
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
