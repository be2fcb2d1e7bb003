// Ops along one axis or several have kernels for contiguous rows only. Their public functions bring
// the axes into that form: with views if the axes already come last, otherwise with one copy.
#pragma once

#include "ebb/op.h"
#include "ebb/ops.h"

namespace ebb {

// Applies `function`, which works along the last axis and keeps the shape, along `axis` of x.
template <class Function>
Tensor along_axis(const Op& op, const Tensor& x, int axis, const Function& function) {
  const int at = wrap_axis(op, x, axis), last = x.rank() - 1;
  return at == last ? function(x) : transpose(function(transpose(x, at, last)), at, last);
}

// The axes that a reduction names, in ascending order; if it names none, all axes. Naming one twice
// is an error.
Axes axes_of(const Op& op, const Tensor& x, const Axes& named);

// x with some axes joined into one that comes last, and the shape of a result without them.
struct RowsOver {
  Tensor rows;   // (kept axes..., columns)
  Shape result;  // the kept axes, and 1 for each reduced axis with Keep::yes
};

// No axes means all.
RowsOver rows_over(const Op& op, const Tensor& x, const Axes& axes, Keep keep);

// A tensor's shape as rows of its last axis.
struct RowShape {
  std::int64_t rows = 0, columns = 0;
  explicit RowShape(const Shape& shape) : rows(1), columns(shape.back()) {
    for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  }
};

// For `infer` of ops over the last axis: the type without it.
inline Shape without_last_axis(const Shape& shape) {
  Shape result = shape;
  result.erase(result.rank() - 1);
  return result;
}

}  // namespace ebb
