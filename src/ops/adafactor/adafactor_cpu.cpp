// The gradient of a matrix is read three times: for the means of rows and columns, for the size of
// the step, and to apply the step; that of a vector twice. The division of work depends on shapes
// only, and partial sums are added in order, so the bits do not depend on the number of threads.
#include <cmath>

#include "core/parallel.h"
#include "ops/adafactor/adafactor.h"
#include "ops/optimizer_step.h"
#include "ops/parameter_cpu.h"
#include "ops/row_math.h"

namespace ebb {
namespace {

constexpr std::int64_t max_pieces = 16;         // of one matrix
constexpr std::int64_t piece_elements = 65536;  // at least, in a matrix cut to pieces
constexpr std::int64_t max_runs = 64;           // of many matrices, or of a flat tensor
// A unit of work: a piece of one matrix, or several whole matrices.
struct Item {
  std::int64_t first, last;           // matrices
  std::int64_t top, bottom;           // rows
  std::int64_t left, right;           // columns
  std::int64_t panel = 0, strip = 0;  // which piece: of rows, of columns
};

struct Geometry {
  std::int64_t batch = 1, rows = 1, columns = 1;
  std::int64_t panels = 1, strips = 1;  // pieces of a matrix along its longer axis

  explicit Geometry(const Shape& shape) {
    const int rank = shape.rank();
    rows = shape[rank - 2], columns = shape[rank - 1];
    for (int i = 0; i < rank - 2; ++i) batch *= shape[i];
    std::int64_t& cut = rows >= columns ? panels : strips;
    cut = std::clamp<std::int64_t>(rows * columns / piece_elements, 1,
                                   std::min(max_pieces, std::max(rows, columns)));
  }

  std::int64_t pieces() const { return panels * strips; }
  std::int64_t items() const { return pieces() > 1 ? batch * pieces() : std::min(batch, max_runs); }
  std::int64_t width() const { return (columns + strips - 1) / strips; }  // of a piece, at most
  Item item(std::int64_t i) const {
    if (pieces() == 1) {
      const std::int64_t runs = items();
      return {batch * i / runs, batch * (i + 1) / runs, 0, rows, 0, columns};
    }
    const std::int64_t matrix = i / pieces(), piece = i % pieces();
    const std::int64_t panel = panels > 1 ? piece : 0, strip = strips > 1 ? piece : 0;
    return {matrix,
            matrix + 1,
            rows * panel / panels,
            rows * (panel + 1) / panels,
            columns * strip / strips,
            columns * (strip + 1) / strips,
            panel,
            strip};
  }
};

// Offsets in the workspace.
struct Workspace {
  Bytes sums = {};     // a double for each item or run
  Bytes factors = {};  // a row of compute type for each worker
  Bytes rows = {};     // of compute type: partial sums of rows (strips, rows)
  Bytes columns = {};  // and of columns (panels, columns)
  Bytes total = {};
};

// Scalars of a step, given or computed.
struct Sizes {
  double beta2 = 0.0, rest2 = 0.0;
  double step = 0.0;   // factor on the clipped update
  double decay = 0.0;  // share of the parameter removed by weight decay

  Sizes(const AdafactorAttributes& a, double rate, double count, double parameter) {
    rest2 = std::pow(count, a.beta2_decay);
    beta2 = 1.0 - rest2;
    step = rate;
    if (a.relative_step)
      step = std::min(a.warm_up ? rate * count / adafactor_warm_up_steps : rate,
                      1.0 / std::sqrt(count));
    if (a.scale_by_parameter) step *= std::max(a.eps_scale, parameter);
    decay = a.weight_decay * (a.decay_by_step ? step : rate);
  }
};

// G is the gradient's type.
template <class G>
class Runner {
 public:
  using C = Compute<G>;

  Runner(const KernelRequest& request, const AdafactorAttributes& a)
      : a_(a),
        runs_(request, a.form),
        elements_(runs_.elements()),
        factored_(request.out().shape().rank() >= 2),
        workers_(threads()) {
    const Shape& shape = request.out().shape();
    const auto take = [&](std::int64_t count, std::size_t size) {
      const Bytes at = space_.total;
      space_.total += round_up({count * static_cast<std::int64_t>(size)}, 64_B);
      return at;
    };
    if (factored_) geometry_.emplace(shape);
    space_.sums = take(std::max(factored_ ? geometry_->items() : 1, max_runs), sizeof(double));
    if (!factored_) return;
    space_.factors = take(workers_ * geometry_->width(), sizeof(C));
    if (geometry_->pieces() == 1) return;
    space_.rows = take(geometry_->strips * geometry_->rows, sizeof(C));
    space_.columns = take(geometry_->panels * geometry_->columns, sizeof(C));
  }

  Bytes workspace() const { return space_.total; }

  void operator()(const KernelArgs& args) const {
    const double rate = *args.in<double>(AdafactorUpdate::rate),
                 count = *args.in<double>(AdafactorUpdate::step);
    const double size = a_.scale_by_parameter ? root_mean_square(args) : 0.0;
    const Sizes s(a_, rate, count, size);
    factored_ ? matrices(args, s) : vector(args, s);
  }

 private:
  // Sum of body(item) over `items`, in order.
  template <class Body>
  double sum_of(const KernelArgs& args, std::int64_t items, const Body& body) const {
    double* sums = args.scratch<double>(space_.sums);
    parallel_for_workers(items, 1, workers_, [&](int worker, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sums[i] = body(worker, i);
    });
    double total = 0.0;
    for (std::int64_t i = 0; i < items; ++i) total += sums[i];
    return total;
  }

  // Calls body(worker, begin, end) for runs of a flat tensor's elements.
  template <class Body>
  double sum_of_runs(const KernelArgs& args, const Body& body) const {
    const std::int64_t runs = std::clamp<std::int64_t>(elements_ / 16384, 1, max_runs);
    return sum_of(args, runs, [&](int, std::int64_t i) {
      return body(elements_ * i / runs, elements_ * (i + 1) / runs);
    });
  }

  static constexpr auto add_square = [](auto& total, const auto& x) { total += x * x; };

  double root_mean_square(const KernelArgs& args) const {
    const double total = sum_of_runs(args, [&](std::int64_t begin, std::int64_t end) {
      constexpr std::int64_t run = ParameterRuns<C>::run;
      double squares = 0.0;
      C area[run] = {};
      for (std::int64_t at = begin; at < end; at += run) {
        const std::int64_t count = std::min(run, end - at);
        squares += static_cast<double>(
            rows::sum_of(count, add_square, runs_.rounded(args, at, count, area)));
      }
      return squares;
    });
    return std::sqrt(total / static_cast<double>(elements_));
  }

  // The factor that clips an update with this sum of squares to the threshold.
  double clipped(double squares) const {
    if (!std::isfinite(a_.clip_threshold)) return 1.0;
    const double size = std::sqrt(squares / static_cast<double>(elements_));
    return 1.0 / std::max(1.0, size / a_.clip_threshold);
  }

  // Applies the step to `count` elements from `at` on: the update is `size` · gradient · factor(j).
  template <class Factor>
  void take(const KernelArgs& args, std::int64_t at, std::int64_t count, C size, C kept,
            const Factor& factor) const {
    const int number = factored_ ? 2 : 1;  // of the momentum among the state
    const C beta1 = static_cast<C>(a_.beta1), rest1 = static_cast<C>((1.0 - a_.beta1)) * size;
    runs_.for_range(args, at, at + count,
                    [&](std::int64_t first, std::int64_t n, const C* p, const C* g, C* p_out) {
                      const std::int64_t from = first - at;
                      if (!a_.momentum) {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
                        for (std::int64_t j = 0; j < n; ++j)
                          p_out[j] = kept * p[j] - size * g[j] * factor(from + j);
                        return;
                      }
                      const C* m = args.in<C>(AdafactorUpdate::state + number) + first;
                      C* m_out = args.out<C>(1 + number) + first;
#pragma GCC ivdep
                      for (std::int64_t j = 0; j < n; ++j) {
                        const C taken = m[j] * beta1 + rest1 * g[j] * factor(from + j);
                        m_out[j] = taken;
                        p_out[j] = kept * p[j] - taken;
                      }
                    });
  }

  void vector(const KernelArgs& args, const Sizes& s) const {
    const G* g = args.in<G>(AdafactorUpdate::gradient);
    const C* v = args.in<C>(AdafactorUpdate::state);
    C* v_out = args.out<C>(AdafactorUpdate::new_state);
    const C scale = *args.in<C>(AdafactorUpdate::gradient_scale),
            eps = static_cast<C>(a_.eps_square);
    const C beta2 = static_cast<C>(s.beta2), rest2 = static_cast<C>(s.rest2);
    const double squares = sum_of_runs(args, [&](std::int64_t begin, std::int64_t end) {
      double total = 0.0;
      C updates[rows::tile];  // squares of them
      for (std::int64_t at = begin; at < end; at += rows::tile) {
        const std::int64_t count = std::min(rows::tile, end - at);
#pragma GCC ivdep
        for (std::int64_t j = 0; j < count; ++j) {
          const C d = static_cast<C>(g[at + j]) * scale;
          const C square = v[at + j] * beta2 + (d * d + eps) * rest2;
          v_out[at + j] = square;
          updates[j] = d * d / square;
        }
        total += static_cast<double>(rows::fold(C(0), count, rows::plus, rows::plus, updates));
      }
      return total;
    });
    const C size = static_cast<C>(s.step * clipped(squares)) * scale;
    const C kept = static_cast<C>(1.0 - s.decay);
    parallel_for(elements_, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      take(args, begin, end - begin, size, kept,
           [from = v_out + begin](std::int64_t j) { return C(1) / std::sqrt(from[j]); });
    });
  }

  void matrices(const KernelArgs& args, const Sizes& s) const {
    const Geometry& q = *geometry_;
    if (q.pieces() == 1)
      means_of_runs(args, s);
    else
      for (std::int64_t matrix = 0; matrix < q.batch; ++matrix) means_by_pieces(args, s, matrix);

    const G* g = args.in<G>(AdafactorUpdate::gradient);
    const C scale = *args.in<C>(AdafactorUpdate::gradient_scale);
    double squares = 0.0;
    if (std::isfinite(a_.clip_threshold))
      squares = sum_of(args, q.items(), [&](int worker, std::int64_t i) {
        double total = 0.0;
        for_rows(args, worker, q.item(i),
                 [&](std::int64_t at, std::int64_t width, C row, C* factors) {
                   const double along = sum_of_products(g + at, factors, width);
                   total += along * static_cast<double>(row) * static_cast<double>(row);
                 });
        return total * static_cast<double>(scale) * static_cast<double>(scale);
      });

    const C size = static_cast<C>(s.step * clipped(squares)) * scale;
    const C kept = static_cast<C>(1.0 - s.decay);
    parallel_for_workers(
        q.items(), 1, workers_, [&](int worker, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i)
            for_rows(args, worker, q.item(i),
                     [&](std::int64_t at, std::int64_t width, C row, const C* factors) {
                       take(args, at, width, size * row, kept,
                            [factors](std::int64_t j) { return factors[j]; });
                     });
        });
  }

  // Σ (x · factor)²
  static double sum_of_products(const G* x, const C* factors, std::int64_t count) {
    rows::TileReader<G> read;
    double total = 0.0;
    rows::for_tiles(count, [&](std::int64_t at, std::int64_t width) {
      const auto step = [](auto& sum, const auto& value, const auto& factor) {
        const auto product = value * factor;
        sum += product * product;
      };
      total += static_cast<double>(
          rows::fold(C(0), width, rows::plus, step, read(x + at, width), factors + at));
    });
    return total;
  }

  // Calls body(at, width, row factor, column factors) for each row of the item's part, `at` being
  // its first element; the update there is gradient · row factor · column factor.
  template <class Body>
  void for_rows(const KernelArgs& args, int worker, const Item& item, const Body& body) const {
    const Geometry& q = *geometry_;
    C* factors = args.scratch<C>(space_.factors) + worker * q.width();
    const std::int64_t width = item.right - item.left;
    for (std::int64_t matrix = item.first; matrix < item.last; ++matrix) {
      const C* row = args.out<C>(AdafactorUpdate::new_state) + matrix * q.rows;
      const C* column = args.out<C>(2) + matrix * q.columns + item.left;
      for (std::int64_t j = 0; j < width; ++j) factors[j] = C(1) / std::sqrt(column[j]);
      const C mean = rows::mean(row, q.rows);
      for (std::int64_t i = item.top; i < item.bottom; ++i)
        body((matrix * q.rows + i) * q.columns + item.left, width, C(1) / std::sqrt(row[i] / mean),
             factors);
    }
  }

  // Adds squares of a row's scaled gradient to `columns` and returns their sum.
  static C add_squares(const G* g, C scale, C* columns, std::int64_t count) {
    rows::TileReader<G> read;
    double total = 0.0;
    rows::for_tiles(count, [&](std::int64_t at, std::int64_t width) {
      const C* x = read(g + at, width);
      for (std::int64_t j = 0; j < width; ++j) {
        const C d = x[j] * scale;
        columns[at + j] += d * d;
      }
      total += static_cast<double>(rows::fold(C(0), width, rows::plus, add_square, x));
    });
    return static_cast<C>(total) * scale * scale;
  }

  // The new mean square of a row or column with this sum of squares.
  struct Keep {
    C beta2, rest2, eps, share;
    Keep(const AdafactorAttributes& a, const Sizes& s, std::int64_t count)
        : beta2(static_cast<C>(s.beta2)),
          rest2(static_cast<C>(s.rest2)),
          eps(static_cast<C>(a.eps_square)),
          share(static_cast<C>(1.0 / static_cast<double>(count))) {}
    C operator()(C before, C sum) const { return before * beta2 + (sum * share + eps) * rest2; }
  };

  // Small matrices, each processed by one worker.
  void means_of_runs(const KernelArgs& args, const Sizes& s) const {
    const Geometry& q = *geometry_;
    const Keep keep_row(a_, s, q.columns), keep_column(a_, s, q.rows);
    const C scale = *args.in<C>(AdafactorUpdate::gradient_scale);
    parallel_for_workers(
        q.items(), 1, workers_, [&](int worker, std::int64_t begin, std::int64_t end) {
          C* sums = args.scratch<C>(space_.factors) + worker * q.width();
          for (std::int64_t m = q.item(begin).first; m < q.item(end - 1).last; ++m) {
            const G* g = args.in<G>(AdafactorUpdate::gradient) + m * q.rows * q.columns;
            const C *row = args.in<C>(AdafactorUpdate::state) + m * q.rows,
                    *column = args.in<C>(AdafactorUpdate::state + 1) + m * q.columns;
            C *row_out = args.out<C>(AdafactorUpdate::new_state) + m * q.rows,
              *column_out = args.out<C>(2) + m * q.columns;
            std::fill_n(sums, q.columns, C(0));
            for (std::int64_t i = 0; i < q.rows; ++i)
              row_out[i] = keep_row(row[i], add_squares(g + i * q.columns, scale, sums, q.columns));
            for (std::int64_t j = 0; j < q.columns; ++j)
              column_out[j] = keep_column(column[j], sums[j]);
          }
        });
  }

  // One large matrix, processed by all workers.
  void means_by_pieces(const KernelArgs& args, const Sizes& s, std::int64_t matrix) const {
    const Geometry& q = *geometry_;
    const G* g = args.in<G>(AdafactorUpdate::gradient);
    const C scale = *args.in<C>(AdafactorUpdate::gradient_scale);
    C *row_sums = args.scratch<C>(space_.rows), *column_sums = args.scratch<C>(space_.columns);
    parallel_for_workers(q.pieces(), 1, workers_, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const Item item = q.item(matrix * q.pieces() + piece);
        C* sums = column_sums + item.panel * q.columns + item.left;
        std::fill_n(sums, item.right - item.left, C(0));
        for (std::int64_t i = item.top; i < item.bottom; ++i)
          row_sums[item.strip * q.rows + i] =
              add_squares(g + (matrix * q.rows + i) * q.columns + item.left, scale, sums,
                          item.right - item.left);
      }
    });
    const auto join = [&](int number, std::int64_t count, std::int64_t over, const C* sums,
                          std::int64_t parts) {
      const Keep keep(a_, s, over);
      const C* before = args.in<C>(AdafactorUpdate::state + number) + matrix * count;
      C* after = args.out<C>(1 + number) + matrix * count;
      for (std::int64_t i = 0; i < count; ++i) {
        C sum = sums[i];
        for (std::int64_t part = 1; part < parts; ++part) sum += sums[part * count + i];
        after[i] = keep(before[i], sum);
      }
    };
    join(0, q.rows, q.columns, row_sums, q.strips);
    join(1, q.columns, q.rows, column_sums, q.panels);
  }

  AdafactorAttributes a_;
  ParameterRuns<C> runs_;
  std::int64_t elements_;
  bool factored_;
  int workers_;
  std::optional<Geometry> geometry_;
  Workspace space_;
};

}  // namespace

Kernel bind_adafactor_cpu(const KernelRequest& request, const AdafactorAttributes& a) {
  return dispatch_floating(request, request.in(AdafactorUpdate::gradient).dtype(), [&](auto tag) {
    using G = typename decltype(tag)::type;
    const Runner<G> runner(request, a);
    return skippable<Compute<G>>(request, AdafactorUpdate::gradient_scale,
                                 {runner, runner.workspace()});
  });
}

}  // namespace ebb
