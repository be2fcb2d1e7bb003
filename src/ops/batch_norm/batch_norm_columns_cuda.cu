// Batch normalisation of x as a matrix (rows, C): with the channels last, and after linear layers.
//
// Each thread has a pack of neighbouring columns and walks down the rows, so accesses are coalesced
// for any number of channels. Blocks sum their share of the rows, a second kernel adds the shares
// of each channel in order and computes its coefficients, and a third applies them to every
// element: y may be x, and dx may be x or g. The third walks in the opposite direction, because the
// rows that the first read last are still in the cache.
//
// All three are limited by memory bandwidth. They need many loads in flight per multiprocessor, and
// so few registers: rows stay in their storage dtype until they are used, and launch bounds set how
// many blocks must fit.
#include <algorithm>

#include "ops/batch_norm/channels.cuh"
#include "ops/cuda/group.cuh"

namespace ebb {
namespace {

constexpr int threads = 256;
constexpr int chunk = 8;              // rows a thread takes together
constexpr int multiprocessors = 132;  // an H200's
constexpr int most_across = 32;       // threads
// Blocks per multiprocessor: for sums, and for kernels that read one tensor or two.
constexpr int fit_sums = 2, fit_one = 3, fit_two = 2;

// How `threads` threads lie over a matrix: (across, down) packs of `width` columns.
struct Columns {
  std::int64_t rows, columns, chunks;
  int across = 1, down, tiles;

  Columns(const ChannelExtent& e, int width) : rows(e.samples), columns(e.channels) {
    const std::int64_t packs = std::max<std::int64_t>(1, columns / width);
    while (across < most_across && across < packs) across *= 2;
    down = threads / across;
    tiles = static_cast<int>(ceil_div(packs, across));
    chunks = ceil_div(rows, down * chunk);
  }

  dim3 block() const { return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)); }
  // Blocks that share a tile's rows, `fit` of all on a multiprocessor at once.
  std::int64_t shares(int fit) const {
    return std::clamp<std::int64_t>(fit * multiprocessors / tiles, 1, chunks);
  }
  dim3 grid(int fit) const {
    return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(shares(fit)));
  }

  // The part of this block and this thread; columns from `columns` on have no work.
  template <int width>
  __device__ std::int64_t first() const {
    return static_cast<std::int64_t>(blockIdx.x) * across * width;
  }
  template <int width>
  __device__ std::int64_t column() const {
    return first<width>() + static_cast<std::int64_t>(threadIdx.x) * width;
  }
  __device__ int lane() const {
    return static_cast<int>(threadIdx.y) * across + static_cast<int>(threadIdx.x);
  }
  // Calls body(first, count) for this thread's rows of every chunk of the block's share: `count`
  // rows, `down` apart. Only the last chunk may have fewer rows.
  template <class Body>
  __device__ void for_chunks(const Body& body) const {
    for (std::int64_t c = blockIdx.y; c < chunks; c += gridDim.y) visit(c, body);
  }
  template <class Body>
  __device__ void for_chunks_backwards(const Body& body) const {
    for (std::int64_t c = chunks - 1 - blockIdx.y; c >= 0; c -= gridDim.y) visit(c, body);
  }

 private:
  template <class Body>
  __device__ void visit(std::int64_t c, const Body& body) const {
    const std::int64_t first = c * (down * chunk) + threadIdx.y;
    if (first < rows)
      body(first, static_cast<int>(
                      ::min(static_cast<std::int64_t>(chunk), (rows - first + down - 1) / down)));
  }
};

// `count` rows of `width` columns each, in their storage dtype: half types take half the registers.
template <class S, int width, int count>
struct Rows {
  using Raw = std::conditional_t<(width > 1), uint4, S>;
  Raw raw[count];

  // The first `held` of them, `step` elements apart.
  __device__ void read(const S* from, std::int64_t step, int held) {
#pragma unroll
    for (int k = 0; k < count; ++k)
      if (k < held) raw[k] = *reinterpret_cast<const Raw*>(from + k * step);
  }
  __device__ void get(int k, Compute<S> (&to)[width]) const {
    if constexpr (width > 1)
      unpack<S>(raw[k], to);
    else
      to[0] = widen(raw[k]);
  }
};

// Two sums over a channel, or a part of it.
struct Pair {
  double a = 0.0, b = 0.0;

  struct Join {
    __device__ Pair operator()(const Pair& x, const Pair& y) const {
      return {x.a + y.a, x.b + y.b};
    }
  };
};

// Σ x and Σ x² of each column. A chunk is summed relative to its first element, so that float32
// rounds deviations and not the mean; chunks are combined in double.
template <class S, int width>
struct SumsOfX {
  using T = Compute<S>;
  const S* x;

  __device__ void start(const Columns&) {}
  __device__ void add(std::int64_t at, std::int64_t step, int count, Pair (&sums)[width]) const {
    Rows<S, width, chunk> rows;
    rows.read(x + at, step, count);
    T first[width], sum[width] = {}, squares[width] = {};
    rows.get(0, first);
#pragma unroll
    for (int k = 1; k < chunk; ++k)
      if (k < count) {
        T values[width];
        rows.get(k, values);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          const T away = values[j] - first[j];
          sum[j] += away;
          squares[j] = fused_multiply_add(away, away, squares[j]);
        }
      }
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const double f = static_cast<double>(first[j]), s = static_cast<double>(sum[j]);
      sums[j].a += s + count * f;
      sums[j].b += static_cast<double>(squares[j]) + f * (2.0 * s + count * f);
    }
  }
};

// Σ g and Σ g · (x - mean) of each column, with relu's mask applied to g.
template <class S, int width, bool relu>
struct SumsOfGradients {
  using T = Compute<S>;
  const S *x, *g;
  Forwards<S> forwards;
  T mean[width] = {}, scale[width] = {}, shift[width] = {};

  __device__ void start(const Columns& p) {
    const std::int64_t column = p.column<width>();
    if (column < p.columns) {
#pragma unroll
      for (int j = 0; j < width; ++j) mean[j] = forwards.means[column + j];
    }
    if constexpr (relu) {
      // A scale takes a square root and a division in double, so each thread computes one and
      // shares it.
      __shared__ T scales[most_across * width];
      for (int c = p.lane(); c < p.across * width; c += threads)
        if (p.first<width>() + c < p.columns) scales[c] = forwards.scale(p.first<width>() + c);
      __syncthreads();
      if (column < p.columns) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          scale[j] = scales[static_cast<int>(threadIdx.x) * width + j];
          shift[j] = forwards.shift(column + j);
        }
      }
    }
  }
  __device__ void add(std::int64_t at, std::int64_t step, int count, Pair (&sums)[width]) const {
    T sum[width] = {}, centred[width] = {};
#pragma unroll
    for (int half = 0; half < chunk; half += chunk / 2) {  // two inputs: fewer rows at once
      Rows<S, width, chunk / 2> values, up;
      values.read(x + at + half * step, step, count - half);
      up.read(g + at + half * step, step, count - half);
#pragma unroll
      for (int k = 0; k < chunk / 2; ++k)
        if (half + k < count) {
          T v[width], u[width];
          values.get(k, v);
          up.get(k, u);
#pragma unroll
          for (int j = 0; j < width; ++j) {
            if constexpr (relu)
              u[j] = passed<S>(u[j], normalised(v[j], mean[j], scale[j], shift[j]));
            sum[j] += u[j];
            centred[j] = fused_multiply_add(u[j], v[j] - mean[j], centred[j]);
          }
        }
    }
#pragma unroll
    for (int j = 0; j < width; ++j) {
      sums[j].a += static_cast<double>(sum[j]);
      sums[j].b += static_cast<double>(centred[j]);
    }
  }
};

// partial (shares, columns)
template <int width, class What>
__global__ void __launch_bounds__(threads, fit_sums)
    sums_kernel(Columns p, What what, Pair* partial) {
  __shared__ double parts[2][threads * width];
  const std::int64_t column = p.column<width>();
  Pair sums[width];
  what.start(p);
  if (column < p.columns)
    p.for_chunks([&](std::int64_t row, int count) {
      what.add(row * p.columns + column, p.down * p.columns, count, sums);
    });
  const int lane = p.lane();
#pragma unroll
  for (int j = 0; j < width; ++j) {
    parts[0][lane * width + j] = sums[j].a;
    parts[1][lane * width + j] = sums[j].b;
  }
  __syncthreads();
  const int held = p.across * width;  // columns of the block
  for (int c = lane; c < held; c += threads) {
    const std::int64_t own = p.first<width>() + c;
    if (own >= p.columns) continue;
    Pair all;
    for (int k = 0; k < p.down; ++k)
      all = Pair::Join{}(all, {parts[0][k * held + c], parts[1][k * held + c]});
    partial[blockIdx.y * p.columns + own] = all;
  }
}

// Results of a channel from its sums.
template <class S>
__device__ Coefficients<Compute<S>> finish(const ForwardChannels<S>& channels, std::int64_t c,
                                           std::int64_t rows, const Pair& sums) {
  const double n = static_cast<double>(rows), mean = sums.a / n;
  return channels.finish(c, {n, mean, ::fmax(0.0, sums.b - sums.a * mean)});
}
template <class S>
__device__ Coefficients<Compute<S>> finish(const BackwardChannels<S>& channels, std::int64_t c,
                                           std::int64_t, const Pair& sums) {
  return channels.finish(c, {sums.a, sums.b});
}

// 32 channels per block: its warps first add every 32nd share of all channels, and then one channel
// each.
template <class S, class Channels>
__global__ void __launch_bounds__(1024)
    finish_kernel(Columns p, std::int64_t shares, const Pair* partial, Channels channels,
                  Coefficients<Compute<S>>* coefficients) {
  __shared__ double parts[2][32][33];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * 32;
  Pair own;
  if (first + threadIdx.x < p.columns) {
#pragma unroll 8
    for (std::int64_t s = threadIdx.y; s < shares; s += 32)
      own = Pair::Join{}(own, partial[s * p.columns + first + threadIdx.x]);
  }
  parts[0][threadIdx.y][threadIdx.x] = own.a;
  parts[1][threadIdx.y][threadIdx.x] = own.b;
  __syncthreads();
  const Pair all = warp_join(
      Pair{parts[0][threadIdx.x][threadIdx.y], parts[1][threadIdx.x][threadIdx.y]}, Pair::Join{});
  const std::int64_t c = first + threadIdx.y;
  if (threadIdx.x == 0 && c < p.columns) coefficients[c] = finish(channels, c, p.rows, all);
}

// Computes out from x and, if `two`, a second tensor of x's shape: column j of the thread is
// each(j, x, beside).
template <class S, int width, bool two, class Each>
__device__ void write_elements(const Columns& p, const S* x, const S* beside, S* out,
                               const Each& each) {
  using T = Compute<S>;
  constexpr int together = chunk / 2;
  p.for_chunks_backwards([&](std::int64_t row, int count) {
    const std::int64_t at = row * p.columns + p.column<width>(), step = p.down * p.columns;
#pragma unroll
    for (int half = 0; half < chunk; half += together) {
      Rows<S, width, together> rows, others;
      rows.read(x + at + half * step, step, count - half);
      if constexpr (two) others.read(beside + at + half * step, step, count - half);
#pragma unroll
      for (int k = 0; k < together; ++k)
        if (half + k < count) {
          T v[width], u[width];
          rows.get(k, v);
          if constexpr (two) others.get(k, u);
#pragma unroll
          for (int j = 0; j < width; ++j) v[j] = each(j, v[j], u[j]);
          store<S, width>(out + at + (half + k) * step, v);
        }
    }
  });
}

// y from x and the added tensor.
template <class S, int width, bool relu, bool adds>
__global__ void __launch_bounds__(threads, adds ? fit_two : fit_one)
    forward_kernel(Columns p, const S* x, const S* added, S* y,
                   const Coefficients<Compute<S>>* coefficients) {
  using T = Compute<S>;
  const std::int64_t column = p.column<width>();
  if (column >= p.columns) return;
  Coefficients<T> c[width];
#pragma unroll
  for (int j = 0; j < width; ++j) c[j] = coefficients[column + j];
  write_elements<S, width, adds>(p, x, added, y, [&](int j, T v, T other) {
    if constexpr (adds)
      return forward<S, relu>(c[j], v, other);
    else
      return forward<S, relu>(c[j], v);
  });
}

// dx from x and g; with relu, recomputes y for the mask.
template <class S, int width, bool relu>
__global__ void __launch_bounds__(threads, fit_two)
    backward_kernel(Columns p, const S* x, const S* g, S* dx,
                    const Coefficients<Compute<S>>* coefficients, Forwards<S> forwards) {
  using T = Compute<S>;
  const std::int64_t column = p.column<width>();
  if (column >= p.columns) return;
  Coefficients<T> c[width];
  T shift[width];
#pragma unroll
  for (int j = 0; j < width; ++j) {
    c[j] = coefficients[column + j];
    shift[j] = relu ? forwards.shift(column + j) : T(0);
  }
  write_elements<S, width, true>(
      p, x, g, dx, [&](int j, T v, T up) { return backward<S, relu>(c[j], v, up, shift[j]); });
}

// The coefficients of all channels, in the workspace.
template <class S, int width, class What, class Channels>
const Coefficients<Compute<S>>* find_coefficients(const KernelArgs& args, const char* name,
                                                  const Columns& p, const What& what,
                                                  const Channels& channels) {
  const std::int64_t shares = p.shares(fit_sums);
  auto* coefficients = args.scratch<Coefficients<Compute<S>>>();
  auto* partial = args.scratch<Pair>(Workspace<S, Pair>(p.columns, shares).coefficients);
  launch({args, name, p.grid(fit_sums), p.block()}, sums_kernel<width, What>, p, what, partial);
  launch({args, name, dim3(static_cast<unsigned>(ceil_div(p.columns, 32))), dim3(32, 32)},
         finish_kernel<S, Channels>, p, shares, partial, channels, coefficients);
  return coefficients;
}

// Calls body with the number of columns per thread: a pack, or one if packs do not fit.
template <class S, class Body>
void with_width(bool packs, const Body& body) {
  if (packs)
    body(std::integral_constant<int, pack<S>>{});
  else
    body(std::integral_constant<int, 1>{});
}

template <class S>
Bytes workspace(const ChannelExtent& e) {
  return std::max(Workspace<S, Pair>(e.channels, Columns(e, 1).shares(fit_sums)).all,
                  Workspace<S, Pair>(e.channels, Columns(e, pack<S>).shares(fit_sums)).all);
}

}  // namespace

Kernel bind_batch_norm_columns_cuda(const KernelRequest& request, const BatchNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const ChannelExtent e(request.out().shape(), a.layout);
    return Kernel{[e, a](const KernelArgs& args) {
                    const S* x = args.in<S>(0);
                    const S* added = a.added ? args.in<S>(a.added_input()) : nullptr;
                    const bool packs =
                        e.channels % pack<S> == 0 && aligned_for_packs(x, added, args.out<S>());
                    with_width<S>(packs, [&](auto w) {
                      constexpr int width = decltype(w)::value;
                      const Columns p(e, width);
                      const auto* coefficients = find_coefficients<S, width>(
                          args, "batch_norm", p, SumsOfX<S, width>{x}, ForwardChannels<S>(args, a));
                      with_flag(a.relu, [&](auto r) {
                        with_flag(a.added, [&](auto s) {
                          launch(
                              {args, "batch_norm", p.grid(a.added ? fit_two : fit_one), p.block()},
                              forward_kernel<S, width, decltype(r)::value, decltype(s)::value>, p,
                              x, added, args.out<S>(), coefficients);
                        });
                      });
                    });
                  },
                  workspace<S>(e)};
  });
}

Kernel bind_batch_norm_grad_columns_cuda(const KernelRequest& request,
                                         const BatchNormGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const ChannelExtent e(request.out().shape(), a.layout);
    return Kernel{
        [e, a, wide = has_wide_bias(request, a)](const KernelArgs& args) {
          const S *x = args.in<S>(0), *g = args.in<S>(1);
          const Forwards<S> forwards(args, a, wide);
          const BackwardChannels<S> channels(args, a, static_cast<double>(e.per_channel()));
          const bool packs = e.channels % pack<S> == 0 && aligned_for_packs(x, g, args.out<S>());
          with_width<S>(packs, [&](auto w) {
            constexpr int width = decltype(w)::value;
            with_flag(a.relu, [&](auto r) {
              constexpr bool relu = decltype(r)::value;
              const Columns p(e, width);
              const auto* coefficients = find_coefficients<S, width>(
                  args, "batch_norm_grad", p, SumsOfGradients<S, width, relu>{x, g, forwards},
                  channels);
              launch({args, "batch_norm_grad", p.grid(fit_two), p.block()},
                     backward_kernel<S, width, relu>, p, x, g, args.out<S>(), coefficients,
                     forwards);
            });
          });
        },
        workspace<S>(e)};
  });
}

}  // namespace ebb
