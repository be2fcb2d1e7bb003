// Norms of any order, made of other ops. Where a norm is not differentiable, the gradient is
// PyTorch's: zero if the norm is zero, and zero for elements that are zero.
#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "ebb/ops.h"
#include "ops/dispatch.h"
#include "ops/reduce/reduce.h"
#include "ops/row_axis.h"

namespace ebb {
namespace {

// root(total), with gradient 0 where the total is 0.
template <class Root>
Tensor root_of(const Tensor& total, const Root& root) {
  const Tensor zero = scalar_like(total, 0.0), none = equal(total, zero);
  return where(none, zero, root(where(none, scalar_like(total, 1.0), total)));
}

// (Σ |x|^p)^(1/p), with gradient 0 in elements that are 0.
Tensor general_norm(const Tensor& x, double p, const Axes& axes, Keep keep) {
  const Tensor zero = scalar_like(x, 0.0), none = equal(x, zero);
  const Tensor of_zero = scalar_like(x, p > 0.0 ? 0.0 : std::numeric_limits<double>::infinity());
  const Tensor powers = where(none, of_zero, pow(where(none, scalar_like(x, 1.0), abs(x)), p));
  return root_of(sum(powers, axes, keep), [p](const Tensor& total) { return pow(total, 1.0 / p); });
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Axes& axes, Keep keep) {
  const Call call = call_on(reduce_op(ReduceKind::sum_squares), x);
  call.require_floating(0);
  if (std::isnan(p)) call.fail_value("the order of a norm must be a number, but is nan");
  if (p < 0.0)
    for (std::int64_t axis : axes_of(call.op, x, axes))
      if (x.shape()[static_cast<int>(axis)] == 0)
        call.fail_shape(fmt::format("the norm of order {} has no value over no elements", p));
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (p == 0.0) return sum(cast(not_equal(x, scalar_like(x, 0.0)), x.dtype()), axes, keep);
  if (p == 1.0) return sum(abs(x), axes, keep);
  if (p == infinity) return max(abs(x), axes, keep);
  if (p == -infinity) return min(abs(x), axes, keep);
  const Tensor wide = cast(x, compute_dtype(x.dtype()));
  const Tensor result = p == 2.0 ? root_of(sum_squares(x, axes, keep),
                                           [](const Tensor& total) { return sqrt(total); })
                                 : general_norm(wide, p, axes, keep);
  return cast(result, x.dtype());
}

}  // namespace ebb
