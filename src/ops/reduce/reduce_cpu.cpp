// Reductions of strided tensors over any axes.
//
// If the innermost axis is reduced, each result folds runs along it; if it is kept, a band of
// neighbouring results is folded together, row by row. The reduced rows are cut into a number of
// slices that depends only on the shapes, folded apart and joined in order: the bits do not depend
// on the number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/reduce/geometry.h"

namespace ebb {
namespace {

constexpr std::int64_t band = 256;  // results folded together when the innermost axis is kept
constexpr std::int64_t run =
    4096;  // elements folded in the element's type before they join a wider sum
constexpr std::int64_t flush_rows = 64;  // the same for bands, in rows
constexpr std::int64_t slice_elements = 1 << 16;
constexpr int accumulator_bytes = 256;  // of a run: four vectors

template <class T>
struct Sum {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  static constexpr bool widens = false;
  static constexpr T identity = T(0);
  static T fold(T acc, T x) { return static_cast<T>(acc + x); }
  template <class W>  // T or Wide
  static W join(W a, W b) {
    return static_cast<W>(a + b);
  }
};

template <class T>
struct SumSquares : Sum<T> {
  static constexpr bool widens = true;  // results have the type of the arithmetic
  static T fold(T acc, T x) { return static_cast<T>(acc + x * x); }
};

template <class T>
struct Max {
  using Wide = T;
  static constexpr bool widens = false;
  static constexpr T identity = std::numeric_limits<T>::has_infinity
                                    ? -std::numeric_limits<T>::infinity()
                                    : std::numeric_limits<T>::lowest();
  static T fold(T acc, T x) { return x > acc || x != x ? x : acc; }
  static T join(T a, T b) { return fold(a, b); }
};

template <class T>
struct Min {
  using Wide = T;
  static constexpr bool widens = false;
  static constexpr T identity = std::numeric_limits<T>::has_infinity
                                    ? std::numeric_limits<T>::infinity()
                                    : std::numeric_limits<T>::max();
  static T fold(T acc, T x) { return x < acc || x != x ? x : acc; }
  static T join(T a, T b) { return fold(a, b); }
};

struct Geometry : ReduceGeometry {
  std::int64_t slices = 1;

  Geometry(const Arg& in, const Axes& axes) : ReduceGeometry(in, axes) {
    // Few results over much data: cut the rows, so that threads have something to share.
    const std::int64_t units =
        inner_reduced ? results : kept.elements() * ((inner + band - 1) / band);
    const std::int64_t total = length * results;
    if (units < 64 && total > 2 * slice_elements)
      slices = std::clamp<std::int64_t>(total / slice_elements / std::max<std::int64_t>(units, 1),
                                        1, 64);
  }
};

template <class S, class T, template <class> class Reduction>
struct Runner {
  using R = Reduction<T>;
  using Wide = typename R::Wide;
  using Result = std::conditional_t<R::widens, T, S>;

  // Folds `count` elements into `lanes` accumulators, enough vectors of them to hide the latency of
  // one operation, and those pairwise into one: joining them in turn would take as long as the
  // elements of a short row.
  static T fold_run(const S* x, std::int64_t stride, std::int64_t count) {
    constexpr int lanes = accumulator_bytes / static_cast<int>(sizeof(T));
    T acc[lanes];
    std::fill_n(acc, lanes, R::identity);
    std::int64_t i = 0;
    if (stride == 1) {
      for (; i + lanes <= count; i += lanes)
        for (int k = 0; k < lanes; ++k) acc[k] = R::fold(acc[k], static_cast<T>(x[i + k]));
    }
    for (; i < count; ++i) acc[0] = R::fold(acc[0], static_cast<T>(x[i * stride]));
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) acc[k] = R::join(acc[k], acc[k + half]);
    return acc[0];
  }

  // Result `index`, over flat positions [begin, end) of its reduced elements.
  static Wide fold_result(const Geometry& g, const S* x, std::int64_t index, std::int64_t begin,
                          std::int64_t end) {
    Wide total = static_cast<Wide>(R::identity);
    const S* base = x + g.kept.offset(index);
    while (begin < end) {
      const std::int64_t row = begin / g.inner, at = begin % g.inner;
      const std::int64_t count = std::min({run, g.inner - at, end - begin});
      total = R::join(total, static_cast<Wide>(fold_run(
                                 base + g.reduced.offset(row) + at * g.stride, g.stride, count)));
      begin += count;
    }
    return total;
  }

  // Results [column, column + width) of kept row `index`, over reduced rows [begin, end).
  static void fold_band(const Geometry& g, const S* x, std::int64_t index, std::int64_t column,
                        std::int64_t width, std::int64_t begin, std::int64_t end, Wide* out) {
    T acc[band];
    std::fill_n(out, width, static_cast<Wide>(R::identity));
    const S* base = x + g.kept.offset(index) + column * g.stride;
    for (std::int64_t row = begin; row < end; row += flush_rows) {
      std::fill_n(acc, width, R::identity);
      for (std::int64_t r = row; r < std::min(row + flush_rows, end); ++r) {
        const S* line = base + g.reduced.offset(r);
        if (g.stride == 1)
          for (std::int64_t k = 0; k < width; ++k)
            acc[k] = R::fold(acc[k], static_cast<T>(line[k]));
        else
          for (std::int64_t k = 0; k < width; ++k)
            acc[k] = R::fold(acc[k], static_cast<T>(line[k * g.stride]));
      }
      for (std::int64_t k = 0; k < width; ++k) out[k] = R::join(out[k], static_cast<Wide>(acc[k]));
    }
  }

  static void run_all(const Geometry& g, const KernelArgs& args) {
    const S* x = args.in<S>(0);
    Result* y = args.out<Result>();
    Wide* partial = args.scratch<Wide>();  // (slices, results)
    const auto write = [&](std::int64_t slice, std::int64_t result, Wide value) {
      if (g.slices == 1)
        y[result] = static_cast<Result>(static_cast<T>(value));
      else
        partial[slice * g.results + result] = value;
    };
    const std::int64_t bands = (g.inner + band - 1) / band;
    const std::int64_t units = g.inner_reduced ? g.results : g.kept.elements() * bands;
    const std::int64_t unit_work = std::max<std::int64_t>(
        1, g.length / g.slices * (g.inner_reduced ? 1 : std::min(band, g.inner)));
    parallel_for(units * g.slices, std::max<std::int64_t>(1, 32768 / unit_work),
                 [&](std::int64_t first, std::int64_t last) {
                   Wide values[band];
                   for (std::int64_t task = first; task < last; ++task) {
                     const std::int64_t unit = task / g.slices, slice = task % g.slices;
                     const std::int64_t begin = g.length * slice / g.slices,
                                        end = g.length * (slice + 1) / g.slices;
                     if (g.inner_reduced) {
                       write(slice, unit, fold_result(g, x, unit, begin, end));
                       continue;
                     }
                     const std::int64_t row = unit / bands, column = unit % bands * band,
                                        width = std::min(band, g.inner - column);
                     fold_band(g, x, row, column, width, begin, end, values);
                     for (std::int64_t k = 0; k < width; ++k)
                       write(slice, row * g.inner + column + k, values[k]);
                   }
                 });
    if (g.slices == 1) return;
    for (std::int64_t result = 0; result < g.results; ++result) {
      Wide total = static_cast<Wide>(R::identity);
      for (std::int64_t slice = 0; slice < g.slices; ++slice)
        total = R::join(total, partial[slice * g.results + result]);
      y[result] = static_cast<Result>(static_cast<T>(total));
    }
  }
};

template <template <class> class Reduction>
Kernel bind(const KernelRequest& request, const ReduceAttributes& a) {
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using R = Runner<S, Compute<S>, Reduction>;
    const Geometry geometry(request.in(0), a.axes);
    const std::int64_t partials = geometry.slices == 1 ? 0 : geometry.slices * geometry.results;
    return Kernel{[geometry](const KernelArgs& args) { R::run_all(geometry, args); },
                  Bytes{partials * static_cast<std::int64_t>(sizeof(typename R::Wide))}};
  });
}

}  // namespace

Kernel bind_sum(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Sum>(request, a);
}
Kernel bind_sum_squares(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<SumSquares>(request, a);
}
Kernel bind_max(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Max>(request, a);
}
Kernel bind_min(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Min>(request, a);
}

}  // namespace ebb
