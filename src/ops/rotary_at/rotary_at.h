#pragma once

#include "ebb/op.h"

namespace ebb {

struct RotaryAtAttributes {
  double base = 10000.0;
  bool operator==(const RotaryAtAttributes&) const = default;
  void visit(auto&& field) { field("base", base); }
};

const Op& rotary_at_op();
Kernel bind_rotary_at_cpu(const KernelRequest& request, const RotaryAtAttributes& attributes);
Kernel bind_rotary_at_cuda(const KernelRequest& request, const RotaryAtAttributes& attributes);

}  // namespace ebb
