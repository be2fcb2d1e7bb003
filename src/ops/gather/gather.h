#pragma once

#include "ebb/op.h"

namespace ebb {

struct GatherAttributes {
  int axis = 0;
  bool operator==(const GatherAttributes&) const = default;
  void visit(auto&& field) { field("axis", axis); }
};

// A tensor as outer × axis × inner.
struct AxisBlocks {
  std::int64_t outer = 1, axis = 1, inner = 1;
  AxisBlocks(const Shape& shape, int at) : axis(shape[at]) {
    for (int i = 0; i < at; ++i) outer *= shape[i];
    for (int i = at + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
};

const Op& gather_op();
const Op& scatter_add_op();
Kernel bind_gather_cuda(const KernelRequest& request, const GatherAttributes& attributes);
Kernel bind_scatter_add_cuda(const KernelRequest& request, const GatherAttributes& attributes);

}  // namespace ebb
