#include "ops/row_axis.h"

#include <fmt/core.h>

namespace ebb {

Axes axes_of(const Op& op, const Tensor& x, const Axes& named) {
  const Call call = call_on(op, x);
  Axes sorted;
  IndexSet seen;
  for (std::int64_t axis : named) {
    const int at = call.axis(axis, x.rank());
    if (seen.contains(at))
      call.fail_value(fmt::format("axis {} is named twice in {}", at, to_string(named)));
    seen.insert(at);
  }
  for (int i = 0; i < x.rank(); ++i)
    if (named.empty() || seen.contains(i)) sorted.push_back(i);
  return sorted;
}

RowsOver rows_over(const Op& op, const Tensor& x, const Axes& axes, Keep keep) {
  const Axes reduced = axes_of(op, x, axes);
  Axes kept;
  Shape joined, result;
  std::int64_t columns = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (reduced.contains(i)) {
      columns *= x.shape()[i];
      if (keep == Keep::yes) result.push_back(1);
    } else {
      kept.push_back(i);
      joined.push_back(x.shape()[i]);
      result.push_back(x.shape()[i]);
    }
  }
  Axes order = kept;
  for (std::int64_t axis : reduced) order.push_back(axis);
  joined.push_back(columns);
  return {reshape(permute(x, order), joined), result};
}

}  // namespace ebb
