// A sequence of small kernels, each with a fixed order of sums: the parameter's size; the means of
// rows and columns, or of every element of a vector; the size of the step; the step itself. Scalar
// computations between them run in one thread, since their inputs are on the device.
#include <algorithm>
#include <cmath>

#include "ebb/storage.h"
#include "ops/adafactor/adafactor.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/parameter.cuh"
#include "ops/cuda/strided.cuh"

namespace ebb {
namespace {

using namespace cuda;

constexpr int threads = 256;
constexpr std::int64_t max_runs = 264;  // of a sum over all elements
// A vector is treated as a matrix of one row without factors.
struct Extent {
  std::int64_t batch = 1, rows = 1, columns = 1, elements = 1;
  bool factored;
  std::int64_t runs;    // of a sum over all elements
  std::int64_t slices;  // of the rows of a matrix, for sums of columns

  explicit Extent(const Shape& shape) : elements(shape.elements()), factored(shape.rank() >= 2) {
    columns = elements;
    if (factored) {
      rows = shape[shape.rank() - 2], columns = shape.back();
      for (int i = 0; i < shape.rank() - 2; ++i) batch *= shape[i];
    }
    runs = std::clamp<std::int64_t>(elements / 4096, 1, max_runs);
    slices = std::clamp<std::int64_t>(rows / 64, 1, 64);
  }
  // Parts of the sum of squares of the update: rows of matrices, runs of a vector.
  constexpr std::int64_t parts() const { return factored ? batch * rows : runs; }
};

// Scalars passed between kernels, in the workspace.
template <class C>
struct Sizes {
  C beta2, rest2;
  C size;  // factor on the gradient, times those of its row and column
  C kept;  // factor on the parameter
};

// T is the parameter's type, G the gradient's.
template <class T, class G>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const double *rate, *step;
  const C* scale;
  const C *rows, *columns, *momentum;  // of a vector only `rows`; momentum may be null
  C *rows_out, *columns_out, *momentum_out;

  Sizes<C>* sizes;
  double *squares, *updates;  // parts of sums over all elements: of p², of the update's squares
  C* column_sums;             // (batch, slices, columns)
  C* row_means;               // (batch): of the rows' mean squares
};

// Whether the step is skipped, in which case no kernel changes anything.
template <class T, class G>
__device__ bool skipped(const State<T, G>& s) {
  return *s.scale == Compute<T>(0);
}

template <class T, class G>
__global__ void __launch_bounds__(threads) parameter_squares(Extent e, State<T, G> s) {
  if (skipped(s)) return;
  const std::int64_t end = e.elements * (blockIdx.x + 1) / e.runs;
  double total = 0.0;
  for (std::int64_t i = e.elements * blockIdx.x / e.runs + threadIdx.x; i < end; i += threads) {
    const double x = static_cast<double>(widen(s.p.in[i]));
    total += x * x;
  }
  total = Group<threads>{static_cast<int>(threadIdx.x)}.sum(total);
  if (threadIdx.x == 0) s.squares[blockIdx.x] = total;
}

template <class T, class G>
__global__ void first_sizes(State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const double rest = ::pow(*s.step, a.beta2_decay);
  s.sizes->beta2 = static_cast<C>(1.0 - rest);
  s.sizes->rest2 = static_cast<C>(rest);
}

// The new mean square of a row or column of `count` elements with this sum of squares.
template <class C>
__device__ C kept_mean(const Sizes<C>& z, C before, C sum, std::int64_t count, double eps) {
  const C share = static_cast<C>(1.0 / static_cast<double>(count));
  return before * z.beta2 + (sum * share + static_cast<C>(eps)) * z.rest2;
}

// A group of threads processes a row of a matrix: a warp for short rows, otherwise a block.
template <int group>
struct RowGroup : Group<group> {
  std::int64_t row;
  __device__ RowGroup()
      : Group<group>{static_cast<int>(threadIdx.x) % group},
        row(static_cast<std::int64_t>(blockIdx.x) * (threads / group) + threadIdx.x / group) {}
};

template <class T, class G, int group>
__global__ void __launch_bounds__(threads)
    row_means_kernel(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const RowGroup<group> own;
  const std::int64_t row = own.row;
  if (row >= e.batch * e.rows) return;
  double total = 0.0;
  for (std::int64_t j = own.lane; j < e.columns; j += group) {
    const C x = widen(s.g[row * e.columns + j]);
    total += static_cast<double>(x * x);
  }
  total = own.sum(total);
  if (own.lane == 0)
    s.rows_out[row] = kept_mean(*s.sizes, s.rows[row], static_cast<C>(total) * *s.scale * *s.scale,
                                e.columns, a.eps_square);
}

// A thread for each column of a slice of a matrix.
template <class T, class G>
__global__ void column_sums_kernel(Extent e, State<T, G> s) {
  if (skipped(s)) return;
  using C = Compute<T>;
  for_items(e.batch * e.slices * e.columns, [&](std::int64_t item) {
    const std::int64_t part = quotient(item, e.columns), j = item - part * e.columns;
    const std::int64_t matrix = quotient(part, e.slices), slice = part - matrix * e.slices;
    const std::int64_t end = e.rows * (slice + 1) / e.slices;
    C total = C(0);
    for (std::int64_t i = e.rows * slice / e.slices; i < end; ++i) {
      const C d = widen(s.g[(matrix * e.rows + i) * e.columns + j]) * *s.scale;
      total += d * d;
    }
    s.column_sums[item] = total;
  });
}

template <class T, class G>
__global__ void column_means_kernel(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  for_items(e.batch * e.columns, [&](std::int64_t item) {
    const std::int64_t matrix = quotient(item, e.columns), j = item - matrix * e.columns;
    C total = C(0);
    for (std::int64_t slice = 0; slice < e.slices; ++slice)
      total += s.column_sums[(matrix * e.slices + slice) * e.columns + j];
    s.columns_out[item] = kept_mean(*s.sizes, s.columns[item], total, e.rows, a.eps_square);
  });
}

// The mean of a matrix's row means; one block per matrix.
template <class T, class G>
__global__ void __launch_bounds__(threads) mean_of_rows(Extent e, State<T, G> s) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const std::int64_t matrix = blockIdx.x;
  double total = 0.0;
  for (std::int64_t i = threadIdx.x; i < e.rows; i += threads)
    total += static_cast<double>(s.rows_out[matrix * e.rows + i]);
  total = Group<threads>{static_cast<int>(threadIdx.x)}.sum(total);
  if (threadIdx.x == 0) s.row_means[matrix] = static_cast<C>(total / static_cast<double>(e.rows));
}

// The factor of a row of a matrix, and of a column.
template <class T, class G>
__device__ Compute<T> row_factor(const Extent& e, const State<T, G>& s, std::int64_t row) {
  using C = Compute<T>;
  return C(1) / square_root(s.rows_out[row] / s.row_means[row / e.rows]);
}
template <class T, class G>
__device__ Compute<T> column_factor(const Extent& e, const State<T, G>& s, std::int64_t row,
                                    std::int64_t j) {
  using C = Compute<T>;
  return C(1) / square_root(s.columns_out[row / e.rows * e.columns + j]);
}

// Σ of the squares of a row's update.
template <class T, class G, int group>
__global__ void __launch_bounds__(threads) row_updates(Extent e, State<T, G> s) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const RowGroup<group> own;
  const std::int64_t row = own.row;
  if (row >= e.batch * e.rows) return;
  const C factor = row_factor(e, s, row) * *s.scale;
  double total = 0.0;
  for (std::int64_t j = own.lane; j < e.columns; j += group) {
    const C u = widen(s.g[row * e.columns + j]) * column_factor(e, s, row, j) * factor;
    total += static_cast<double>(u * u);
  }
  total = own.sum(total);
  if (own.lane == 0) s.updates[row] = total;
}

// A run of a vector: its mean squares, and Σ of the squares of its update.
template <class T, class G>
__global__ void __launch_bounds__(threads)
    vector_means(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const Sizes<C> z = *s.sizes;
  const C eps = static_cast<C>(a.eps_square), scale = *s.scale;
  const std::int64_t end = e.elements * (blockIdx.x + 1) / e.runs;
  double total = 0.0;
  for (std::int64_t i = e.elements * blockIdx.x / e.runs + threadIdx.x; i < end; i += threads) {
    const C d = widen(s.g[i]) * scale;
    const C square = s.rows[i] * z.beta2 + (d * d + eps) * z.rest2;
    s.rows_out[i] = square;
    total += static_cast<double>(d * d / square);
  }
  total = Group<threads>{static_cast<int>(threadIdx.x)}.sum(total);
  if (threadIdx.x == 0) s.updates[blockIdx.x] = total;
}

// One block: the size of the step from the sums.
template <class T, class G>
__global__ void __launch_bounds__(threads)
    last_sizes(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const Group<threads> group{static_cast<int>(threadIdx.x)};
  const auto sum = [&](const double* parts, std::int64_t count) {
    double total = 0.0;
    for (std::int64_t i = threadIdx.x; i < count; i += threads) total += parts[i];
    return group.sum(total);
  };
  const double count = static_cast<double>(e.elements);
  const bool clips = !isinf(a.clip_threshold);
  const double parameter = a.scale_by_parameter ? square_root(sum(s.squares, e.runs) / count) : 0.0;
  const double update = clips ? square_root(sum(s.updates, e.parts()) / count) : 0.0;
  if (threadIdx.x != 0) return;
  const double rate = *s.rate, number = *s.step;
  double step = rate;
  if (a.relative_step) {
    const double given = a.warm_up ? rate * number / adafactor_warm_up_steps : rate;
    const double most = 1.0 / square_root(number);
    step = given < most ? given : most;
  }
  if (a.scale_by_parameter) step *= parameter > a.eps_scale ? parameter : a.eps_scale;
  const double decay = a.weight_decay * (a.decay_by_step ? step : rate);
  const double excess = clips ? update / a.clip_threshold : 0.0;
  s.sizes->size = static_cast<C>(step / (excess > 1.0 ? excess : 1.0)) * *s.scale;
  s.sizes->kept = static_cast<C>(1.0 - decay);
}

template <class T, class G>
__device__ void take(const State<T, G>& s, const AdafactorAttributes& a, std::int64_t i,
                     Compute<T> size, Compute<T> kept, Compute<T> factor) {
  using C = Compute<T>;
  C x[1];
  s.p.template load<1>(i, x);
  const C g = widen(s.g[i]);
  C taken = size * g * factor;
  if (a.momentum) {
    taken =
        s.momentum[i] * static_cast<C>(a.beta1) + static_cast<C>(1.0 - a.beta1) * size * g * factor;
    s.momentum_out[i] = taken;
  }
  x[0] = kept * x[0] - taken;
  s.p.template store<1>(i, x);
}

template <class T, class G, int group>
__global__ void __launch_bounds__(threads)
    step_rows(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const RowGroup<group> own;
  const std::int64_t row = own.row;
  if (row >= e.batch * e.rows) return;
  const C size = s.sizes->size * row_factor(e, s, row), kept = s.sizes->kept;
  for (std::int64_t j = own.lane; j < e.columns; j += group)
    take(s, a, row * e.columns + j, size, kept, column_factor(e, s, row, j));
}

template <class T, class G>
__global__ void step_vector(Extent e, State<T, G> s, AdafactorAttributes a) {
  if (skipped(s)) return;
  using C = Compute<T>;
  const C size = s.sizes->size, kept = s.sizes->kept;
  for_items(e.elements,
            [&](std::int64_t i) { take(s, a, i, size, kept, C(1) / square_root(s.rows_out[i])); });
}

template <class T, class G>
struct Runner {
  using C = Compute<T>;
  Extent e;
  AdafactorAttributes a;
  Bytes squares_at, updates_at, columns_at, means_at, workspace;

  Runner(const Shape& shape, const AdafactorAttributes& attributes) : e(shape), a(attributes) {
    const auto add = [&](std::int64_t count, std::size_t size) {
      const Bytes at = workspace;
      workspace += round_up({count * static_cast<std::int64_t>(size)}, buffer_alignment);
      return at;
    };
    add(1, sizeof(Sizes<C>));
    squares_at = add(e.runs, sizeof(double));
    updates_at = add(e.parts(), sizeof(double));
    columns_at = add(e.factored ? e.batch * e.slices * e.columns : 0, sizeof(C));
    means_at = add(e.factored ? e.batch : 0, sizeof(C));
  }

  void operator()(const KernelArgs& args) const {
    if (e.elements == 0) return;
    const int momentum = e.factored ? 2 : 1;
    const State<T, G> s{{args, a.form},
                        args.in<G>(AdafactorUpdate::gradient),
                        args.in<double>(AdafactorUpdate::rate),
                        args.in<double>(AdafactorUpdate::step),
                        args.in<C>(AdafactorUpdate::gradient_scale),
                        args.in<C>(AdafactorUpdate::state),
                        e.factored ? args.in<C>(AdafactorUpdate::state + 1) : nullptr,
                        a.momentum ? args.in<C>(AdafactorUpdate::state + momentum) : nullptr,
                        args.out<C>(AdafactorUpdate::new_state),
                        e.factored ? args.out<C>(2) : nullptr,
                        a.momentum ? args.out<C>(1 + momentum) : nullptr,
                        args.scratch<Sizes<C>>(),
                        args.scratch<double>(squares_at),
                        args.scratch<double>(updates_at),
                        args.scratch<C>(columns_at),
                        args.scratch<C>(means_at)};
    const auto start = [&](auto kernel, dim3 grid, auto... more) {
      launch({args, "adafactor", grid, dim3(threads)}, kernel, more...);
    };
    const bool short_rows = e.columns <= 128;
    const dim3 runs(static_cast<unsigned>(e.runs));
    const dim3 rows(static_cast<unsigned>(short_rows ? ceil_div(e.batch * e.rows, threads / 32)
                                                     : e.batch * e.rows));
    launch({args, "adafactor", dim3(1), dim3(1)}, first_sizes<T, G>, s, a);
    if (a.scale_by_parameter) start(parameter_squares<T, G>, runs, e, s);
    if (e.factored) {
      start(short_rows ? row_means_kernel<T, G, 32> : row_means_kernel<T, G, threads>, rows, e, s,
            a);
      start(column_sums_kernel<T, G>, item_grid(e.batch * e.slices * e.columns), e, s);
      start(column_means_kernel<T, G>, item_grid(e.batch * e.columns), e, s, a);
      start(mean_of_rows<T, G>, dim3(static_cast<unsigned>(e.batch)), e, s);
      if (!std::isinf(a.clip_threshold))
        start(short_rows ? row_updates<T, G, 32> : row_updates<T, G, threads>, rows, e, s);
    } else {
      start(vector_means<T, G>, runs, e, s, a);
    }
    start(last_sizes<T, G>, dim3(1), e, s, a);
    if (e.factored)
      start(short_rows ? step_rows<T, G, 32> : step_rows<T, G, threads>, rows, e, s, a);
    else
      start(step_vector<T, G>, item_grid(e.elements), e, s, a);
  }
};

}  // namespace

Kernel bind_adafactor_cuda(const KernelRequest& request, const AdafactorAttributes& a) {
  return dispatch_gradient(request, [&](auto parameter, auto gradient) {
    const Runner<typename decltype(parameter)::type, typename decltype(gradient)::type> runner(
        request.out().shape(), a);
    return skippable_on_device({&request, 1}, {runner, runner.workspace});
  });
}

}  // namespace ebb
