#include <cmath>

#include "core/parallel.h"
#include "core/vector_math.h"
#include "ops/row_axis.h"
#include "ops/row_math.h"
#include "ops/row_statistics/row_statistics.h"

namespace ebb {
namespace {

// An infinite largest element is not subtracted, since inf - inf would be NaN; the result is then
// that infinity.
template <class S>
S logsumexp_row(const S* x, std::int64_t columns) {
  using T = Compute<S>;
  const T most = rows::max(x, columns);
  const T shift = std::isinf(most) ? T(0) : most;
  rows::TileReader<S> read;
  T e[rows::tile];
  double total = 0.0;
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T* in = read(x + at, count);
    for (std::int64_t i = 0; i < count; ++i) e[i] = vm::exp(in[i] - shift);
    total += static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, e));
  });
  return static_cast<S>(static_cast<T>(std::log(total)) + shift);
}

template <class S>
std::int64_t argmax_row(const S* x, std::int64_t columns) {
  using T = Compute<S>;
  std::int64_t best = 0;
  T most = static_cast<T>(x[0]);
  for (std::int64_t i = 1; i < columns && most == most; ++i) {
    const T value = static_cast<T>(x[i]);
    if (value > most || value != value) best = i, most = value;
  }
  return best;
}

// A kernel that writes row(x, columns) for each row of S.
template <class S, class Out, class Row>
Kernel bind_rows(const KernelRequest& request, const Row& row) {
  const RowShape shape(request.in(0).shape());
  return {[shape, row](const KernelArgs& args) {
    const S* x = args.in<S>(0);
    Out* y = args.out<Out>();
    parallel_for(shape.rows, rows::grain(shape.columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) y[r] = row(x + r * shape.columns, shape.columns);
    });
  }};
}

}  // namespace

Kernel bind_logsumexp_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return bind_rows<S, S>(request, logsumexp_row<S>);
  });
}

Kernel bind_var_cpu(const KernelRequest& request, const VarAttributes& a) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return bind_rows<S, S>(request, [correction = a.correction](const S* x, std::int64_t columns) {
      const double squares = rows::squared_deviation(x, rows::mean(x, columns), columns);
      return static_cast<S>(
          static_cast<Compute<S>>(squares / static_cast<double>(columns - correction)));
    });
  });
}

Kernel bind_argmax_cpu(const KernelRequest& request, const NoAttributes&) {
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return bind_rows<S, std::int64_t>(request, argmax_row<S>);
  });
}

}  // namespace ebb
