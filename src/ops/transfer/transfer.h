// Copies of a tensor between the tiers of memory. Only the planner adds them (plan/offload).
#pragma once

#include "ebb/op.h"
#include "ebb/tier.h"

namespace ebb {

struct TransferAttributes {
  Tier tier = Tier::host;  // the other end; one end is always the device
  bool operator==(const TransferAttributes&) const = default;
  void visit(auto&& field) { field.choice("tier", tier, tier_names); }
};

const Op& store_op();  // from the device to the tier
const Op& fetch_op();  // from the tier to the device

Kernel bind_transfer_cuda(const KernelRequest& request, const TransferAttributes& a);

inline bool is_transfer(const Op& op) { return &op == &store_op() || &op == &fetch_op(); }

}  // namespace ebb
