// Four ops on matrices of the pattern 2:4 (ebb/pairs.h).
#pragma once

#include "ebb/op.h"
#include "ebb/pairs.h"

namespace ebb {

// x (M, columns) · Wᵀ → (M, rows), or, `back`, x (M, rows) · W → (M, columns).
struct PairLinearAttributes {
  bool back = false;
  bool operator==(const PairLinearAttributes&) const = default;
  void visit(auto&& field) { field("back", back); }
};

const Op& choose_pairs_op();
const Op& take_pairs_op();
const Op& spread_pairs_op();
const Op& pair_linear_op();

Kernel bind_choose_pairs_cpu(const KernelRequest& request, const NoAttributes& attributes);
Kernel bind_take_pairs_cpu(const KernelRequest& request, const NoAttributes& attributes);
Kernel bind_spread_pairs_cpu(const KernelRequest& request, const NoAttributes& attributes);
Kernel bind_pair_linear_cpu(const KernelRequest& request, const PairLinearAttributes& attributes);

}  // namespace ebb
