// Reductions over any axes on the CPU, of elements from memory or from a program that computes
// them.
//
// If the innermost axis is reduced, each result folds runs along it; if it is kept, a band of
// neighbouring results is folded together, row by row. The reduced rows are divided into a number
// of slices that depends only on the shapes; slices are reduced separately and combined in order,
// so the bits do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/reduce/geometry.h"

namespace ebb::fold {

// Results folded together when the innermost axis is kept: slices are counted by the first number.
constexpr std::int64_t band = 256, most_in_band = 2048;
constexpr std::int64_t together_elements = 512;  // of short rows
constexpr std::int64_t run =
    4096;  // elements folded in the element's type before they join a wider sum
constexpr std::int64_t flush_rows = 64;  // the same for bands, in rows
constexpr std::int64_t slice_elements = 1 << 16;
constexpr int accumulator_bytes = 256;  // of a run: four vectors

template <class T>
struct Sum {
  // What elements of T are folded in. A sum of integers is an int64.
  using Arithmetic = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
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
  using Arithmetic = T;
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
  using Arithmetic = T;
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
  std::int64_t together = 1;  // results of a band; any number gives the same bits

  Geometry(const Arg& in, const Axes& axes, int workers) : ReduceGeometry(in, axes) {
    // Few results over much data: split the rows, so that all threads have work.
    const std::int64_t units = inner_reduced ? results : kept.elements() * parts(inner, band);
    const std::int64_t total = length * results;
    if (units < 64 && total > 2 * slice_elements)
      slices = std::clamp<std::int64_t>(total / slice_elements / std::max<std::int64_t>(units, 1),
                                        1, 64);
    // Bands are as long as possible, for contiguous reads, but short enough that every worker has
    // one.
    const std::int64_t wanted = parts(workers, kept.elements() * slices);
    together =
        parts(inner, std::max(parts(inner, most_in_band), std::min(parts(inner, band), wanted)));
  }

  // How many parts of a size there are, one at least.
  static std::int64_t parts(std::int64_t of, std::int64_t size) {
    return std::max<std::int64_t>(1, (of + size - 1) / std::max<std::int64_t>(1, size));
  }
  // A unit is a result, or a band of them; a task is a slice of a unit.
  std::int64_t bands() const { return inner_reduced ? 1 : (inner + together - 1) / together; }
  std::int64_t units() const { return inner_reduced ? results : kept.elements() * bands(); }
  std::int64_t tasks() const { return units() * slices; }
  // The first of a unit's reduced elements, or rows of a band, that a slice has.
  std::int64_t slice_begin(std::int64_t slice) const { return length * slice / slices; }
  // Of a task, where tasks read a tensor's elements in their order.
  std::int64_t first_element(std::int64_t task) const {
    const std::int64_t row = inner_reduced ? 1 : inner;
    return (task / slices * length + slice_begin(task % slices)) * row;
  }
};

// Elements as they lie in memory.
template <class S>
struct InMemory {
  const S* x;
  std::int64_t stride;  // of the innermost axis

  // Calls fold(from, stride, count) on neighbours along the innermost axis, in one or several
  // pieces.
  template <class Fold>
  void visit(std::int64_t at, std::int64_t count, const Fold& fold) const {
    fold(x + at, stride, count);
  }
};

// S is the type of the elements. A source has their values as S or as Compute<S>.
template <class S, template <class> class Reduction>
struct Runner {
  using T = typename Reduction<Compute<S>>::Arithmetic;
  using R = Reduction<T>;
  using Wide = typename R::Wide;
  using Result = std::conditional_t<R::widens || std::is_integral_v<T>, T, S>;
  static constexpr int lanes = accumulator_bytes / static_cast<int>(sizeof(T));

  static std::int64_t partials(const Geometry& g) {
    return g.slices == 1 ? 0 : g.slices * g.results;
  }
  static Bytes partial_bytes(const Geometry& g) {
    return {partials(g) * static_cast<std::int64_t>(sizeof(Wide))};
  }

  // Reduces `count` elements into `lanes` accumulators, enough vectors to hide the latency of one
  // operation, and those pairwise into one: combining them one by one would take as long as a short
  // row. All pieces of a source except the last are multiples of `lanes`.
  template <class Source>
  static T fold_run(Source& source, std::int64_t at, std::int64_t count) {
    T acc[lanes];
    std::fill_n(acc, lanes, R::identity);
    source.visit(at, count, [&](const auto* x, std::int64_t stride, std::int64_t n) {
      std::int64_t i = 0;
      if (stride == 1) {
        for (; i + lanes <= n; i += lanes)
          for (int k = 0; k < lanes; ++k) acc[k] = R::fold(acc[k], static_cast<T>(x[i + k]));
      }
      for (; i < n; ++i) acc[0] = R::fold(acc[0], static_cast<T>(x[i * stride]));
    });
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) acc[k] = R::join(acc[k], acc[k + half]);
    return acc[0];
  }

  // Result `index`, over flat positions [begin, end) of its reduced elements.
  template <class Source>
  static Wide fold_result(const Geometry& g, Source& source, std::int64_t index, std::int64_t begin,
                          std::int64_t end) {
    Wide total = static_cast<Wide>(R::identity);
    const std::int64_t base = g.kept.offset(index);
    while (begin < end) {
      const std::int64_t row = begin / g.inner, at = begin % g.inner;
      const std::int64_t count = std::min({run, g.inner - at, end - begin});
      total = R::join(total, static_cast<Wide>(fold_run(
                                 source, base + g.reduced.offset(row) + at * g.stride, count)));
      begin += count;
    }
    return total;
  }

  // Results [column, column + width) of kept row `index`, over reduced rows [begin, end).
  template <class Source>
  static void fold_band(const Geometry& g, Source& source, std::int64_t index, std::int64_t column,
                        std::int64_t width, std::int64_t begin, std::int64_t end, Wide* out) {
    T acc[most_in_band];
    std::fill_n(out, width, static_cast<Wide>(R::identity));
    const std::int64_t base = g.kept.offset(index) + column * g.stride;
    // Short rows that follow one another are visited together.
    const bool follow = width == g.inner && g.reduced.shape.rank() == 1 &&
                        g.reduced.strides[0] == g.inner * g.stride;
    const std::int64_t at_once = follow ? std::max<std::int64_t>(1, together_elements / width) : 1;
    for (std::int64_t row = begin; row < end; row += flush_rows) {
      std::fill_n(acc, width, R::identity);
      const std::int64_t last = std::min(row + flush_rows, end);
      for (std::int64_t r = row; r < last; r += at_once) {
        std::int64_t next = 0;  // column of the next element
        source.visit(base + g.reduced.offset(r), std::min(at_once, last - r) * width,
                     [&](const auto* x, std::int64_t stride, std::int64_t count) {
                       if (count == width && next == 0) {
                         fold_line(acc, x, stride, width);
                         return;
                       }
                       while (count > 0) {
                         const std::int64_t n = std::min(count, width - next);
                         fold_line(acc + next, x, stride, n);
                         x += n * stride, count -= n;
                         next = next + n == width ? 0 : next + n;
                       }
                     });
      }
      for (std::int64_t k = 0; k < width; ++k) out[k] = R::join(out[k], static_cast<Wide>(acc[k]));
    }
  }

  template <class E>
  static void fold_line(T* acc, const E* x, std::int64_t stride, std::int64_t count) {
    if (stride == 1)
      for (std::int64_t k = 0; k < count; ++k) acc[k] = R::fold(acc[k], static_cast<T>(x[k]));
    else
      for (std::int64_t k = 0; k < count; ++k)
        acc[k] = R::fold(acc[k], static_cast<T>(x[k * stride]));
  }

  // `open(worker, first, last)` gives the source for a worker's tasks; `partial` has room for
  // `partials` numbers.
  template <class Open>
  static void run_all(const Geometry& g, int workers, Result* y, Wide* partial, const Open& open) {
    const auto write = [&](std::int64_t slice, std::int64_t result, Wide value) {
      if (g.slices == 1)
        y[result] = static_cast<Result>(static_cast<T>(value));
      else
        partial[slice * g.results + result] = value;
    };
    const std::int64_t unit_work = std::max<std::int64_t>(
        1, g.length / g.slices * (g.inner_reduced ? 1 : std::min(g.together, g.inner)));
    parallel_for_workers(
        g.tasks(), std::max<std::int64_t>(1, 32768 / unit_work), workers,
        [&](int worker, std::int64_t first, std::int64_t last) {
          auto source = open(worker, first, last);
          Wide values[most_in_band];
          for (std::int64_t task = first; task < last; ++task) {
            const std::int64_t unit = task / g.slices, slice = task % g.slices;
            const std::int64_t begin = g.slice_begin(slice), end = g.slice_begin(slice + 1);
            if (g.inner_reduced) {
              write(slice, unit, fold_result(g, source, unit, begin, end));
              continue;
            }
            const std::int64_t row = unit / g.bands(), column = unit % g.bands() * g.together,
                               width = std::min(g.together, g.inner - column);
            fold_band(g, source, row, column, width, begin, end, values);
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

}  // namespace ebb::fold
