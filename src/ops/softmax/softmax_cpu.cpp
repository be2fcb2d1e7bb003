// Softmax and its logarithm over contiguous rows. The largest element is subtracted first, so that
// no exponential overflows and at least one is 1. Every kernel may write over its input.
#include "core/parallel.h"
#include "core/vector_math.h"
#include "ops/row_axis.h"
#include "ops/row_math.h"
#include "ops/softmax/softmax.h"

namespace ebb {
namespace {

template <class T>
void shifted_exp(const T* x, T most, T* y, std::int64_t count) {
#pragma GCC ivdep  // y may be x itself
  for (std::int64_t i = 0; i < count; ++i) y[i] = vm::exp(x[i] - most);
}

template <class T>
void scale(T* y, T factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) y[i] *= factor;
}

// Σ exp(x - most). The exponentials themselves are not stored.
template <class S>
double exp_sum(const S* x, Compute<S> most, std::int64_t columns) {
  using T = Compute<S>;
  rows::TileReader<S> read;
  T e[rows::tile];
  double total = 0.0;
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    shifted_exp(read(x + at, count), most, e, count);
    total += static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, e));
  });
  return total;
}

template <class S>
void softmax_row(const S* x, S* y, std::int64_t columns) {
  using T = Compute<S>;
  const T most = rows::max(x, columns);
  if constexpr (std::is_same_v<S, T>) {
    double total = 0.0;
    rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
      shifted_exp(x + at, most, y + at, count);
      total += static_cast<double>(rows::fold(T(0), count, rows::plus, rows::plus, y + at));
    });
    scale(y, static_cast<T>(1.0 / total), columns);
  } else {
    // Exponentials stored in a half type would be rounded twice. So they stay in a tile that holds
    // the whole row, or are computed again.
    rows::TileReader<S> read;
    rows::TileWriter<S> write;
    if (columns <= rows::tile) {
      T* out = write.begin(y);
      shifted_exp(read(x, columns), most, out, columns);
      scale(out, T(1) / rows::fold(T(0), columns, rows::plus, rows::plus, out), columns);
      write.end(y, columns);
      return;
    }
    const T factor = static_cast<T>(1.0 / exp_sum(x, most, columns));
    rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
      T* out = write.begin(y + at);
      shifted_exp(read(x + at, count), most, out, count);
      scale(out, factor, count);
      write.end(y + at, count);
    });
  }
}

template <class S>
void log_softmax_row(const S* x, S* y, std::int64_t columns) {
  using T = Compute<S>;
  const T most = rows::max(x, columns);
  const T log_sum = static_cast<T>(std::log(exp_sum(x, most, columns)));
  rows::TileReader<S> read;
  rows::TileWriter<S> write;
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T* in = read(x + at, count);
    T* out = write.begin(y + at);
#pragma GCC ivdep  // y may be x itself
    for (std::int64_t i = 0; i < count; ++i) out[i] = (in[i] - most) - log_sum;
    write.end(y + at, count);
  });
}

template <class S>
void softmax_grad_row(const S* y, const S* g, S* dx, std::int64_t columns) {
  using T = Compute<S>;
  rows::TileReader<S> read_y, read_g;
  rows::TileWriter<S> write;
  double dot = 0.0;
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    dot += static_cast<double>(rows::fold(
        T(0), count, rows::plus, [](auto& total, const auto& a, const auto& b) { total += a * b; },
        read_y(y + at, count), read_g(g + at, count)));
  });
  const T mean = static_cast<T>(dot);  // of g, weighted by y
  rows::for_tiles(columns, [&](std::int64_t at, std::int64_t count) {
    const T *p = read_y(y + at, count), *q = read_g(g + at, count);
    T* out = write.begin(dx + at);
#pragma GCC ivdep  // dx may be y or g itself
    for (std::int64_t i = 0; i < count; ++i) out[i] = p[i] * (q[i] - mean);
    write.end(dx + at, count);
  });
}

// A kernel that calls row(x, y, columns) for each row.
template <class Row>
Kernel bind_rows(const KernelRequest& request, const Row& row) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const RowShape shape(request.out().shape());
    return Kernel{[shape, row](const KernelArgs& args) {
      parallel_for(shape.rows, rows::grain(shape.columns),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t r = begin; r < end; ++r)
                       row(TypeTag<S>{}, args, r * shape.columns, shape.columns);
                   });
    }};
  });
}

}  // namespace

Kernel bind_softmax_cpu(const KernelRequest& request, const NoAttributes&) {
  return bind_rows(request, [](auto tag, const KernelArgs& args, std::int64_t at, std::int64_t n) {
    using S = typename decltype(tag)::type;
    softmax_row(args.in<S>(0) + at, args.out<S>() + at, n);
  });
}

Kernel bind_log_softmax_cpu(const KernelRequest& request, const NoAttributes&) {
  return bind_rows(request, [](auto tag, const KernelArgs& args, std::int64_t at, std::int64_t n) {
    using S = typename decltype(tag)::type;
    log_softmax_row(args.in<S>(0) + at, args.out<S>() + at, n);
  });
}

Kernel bind_softmax_grad_cpu(const KernelRequest& request, const NoAttributes&) {
  return bind_rows(request, [](auto tag, const KernelArgs& args, std::int64_t at, std::int64_t n) {
    using S = typename decltype(tag)::type;
    softmax_grad_row(args.in<S>(0) + at, args.in<S>(1) + at, args.out<S>() + at, n);
  });
}

}  // namespace ebb
