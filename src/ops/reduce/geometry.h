// The axes of a reduction in memory: sorted into kept and reduced axes, with neighbouring axes
// merged and the innermost axis, kept or reduced, separate.
#pragma once

#include "ops/reduce/reduce.h"

namespace ebb {

// A list of axes with sizes and strides, joined where they continue one another.
struct AxisList {
  Shape shape;
  Strides strides;

  void add(std::int64_t extent, std::int64_t stride) {
    if (extent == 1) return;
    const int last = shape.rank() - 1;
    if (last >= 0 && strides[last] == stride * extent) {
      shape[last] *= extent;
      strides[last] = stride;
    } else {
      shape.push_back(extent);
      strides.push_back(stride);
    }
  }
  std::int64_t offset(std::int64_t index) const {
    std::int64_t result = 0;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      result += index % shape[i] * strides[i];
      index /= shape[i];
    }
    return result;
  }
  std::int64_t elements() const { return shape.elements(); }
};

struct ReduceGeometry {
  AxisList kept, reduced;              // without the innermost axis
  std::int64_t inner = 1, stride = 1;  // the innermost axis
  bool inner_reduced = true;
  std::int64_t results = 1;
  std::int64_t length = 1;  // elements folded into each result

  ReduceGeometry(const Arg& in, const Axes& axes) {
    int last = in.shape().rank() - 1;
    while (last >= 0 && in.shape()[last] == 1) --last;
    // Join the innermost axes of one kind first, so that the run is as long as memory allows.
    if (last >= 0) {
      inner = in.shape()[last], stride = in.strides[last], inner_reduced = axes.contains(last);
      int i = last - 1;
      for (; i >= 0; --i) {
        if (in.shape()[i] == 1) continue;
        if (axes.contains(i) != inner_reduced || in.strides[i] != stride * inner) break;
        inner *= in.shape()[i];
      }
      for (int k = 0; k <= i; ++k)
        (axes.contains(k) ? reduced : kept).add(in.shape()[k], in.strides[k]);
    }
    results = kept.elements() * (inner_reduced ? 1 : inner);
    length = reduced.elements() * (inner_reduced ? inner : 1);
  }

  // For a tensor that lies in one piece: whether folding one result after the other, or one row of
  // results, reads its elements in their order.
  bool in_order() const {
    return reduced.shape.rank() == 0 ||
           (!inner_reduced && reduced.shape.rank() == 1 && reduced.strides[0] == inner);
  }
};

}  // namespace ebb
