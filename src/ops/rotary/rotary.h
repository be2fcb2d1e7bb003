#pragma once

#include "ebb/op.h"

namespace ebb {

struct RotaryAttributes {
  double base = 10000.0;
  std::int64_t first_position = 0;
  bool inverse = false;  // turns the other way: the gradient of turning
  bool operator==(const RotaryAttributes&) const = default;
  void visit(auto&& field) {
    field("base", base);
    field("first_position", first_position);
    field("inverse", inverse);
  }
};

const Op& rotary_op();
Kernel bind_rotary_cpu(const KernelRequest& request, const RotaryAttributes& attributes);
Kernel bind_rotary_cuda(const KernelRequest& request, const RotaryAttributes& attributes);

}  // namespace ebb
