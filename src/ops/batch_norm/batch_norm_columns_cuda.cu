// Batch normalisation of x as a matrix (rows, C): with the channels last, and after linear layers.
//
// Threads own a pack of neighbouring columns and walk down the rows, so memory is read along itself
// whatever the number of channels. Blocks sum slices of the rows, a second kernel joins the slices
// of each channel in order and makes its coefficients, and a third applies them to every element: y
// may be x, and dx may be x or g.
#include <algorithm>

#include "ops/batch_norm/channels.cuh"
#include "ops/cuda/group.cuh"

namespace ebb {
namespace {

constexpr int threads = 256;
constexpr int chunk = 8;                     // rows a thread takes together
constexpr std::int64_t wanted_blocks = 528;  // four for each of an H200's multiprocessors
constexpr std::int64_t most_blocks_down = 4096;
constexpr int most_across = 32;  // threads

// How `threads` threads lie over a matrix: (across, down) packs of `width` columns.
struct Columns {
  std::int64_t rows, columns, slices;
  int across = 1, down, tiles;

  Columns(const ChannelExtent& e, int width) : rows(e.samples), columns(e.channels) {
    const std::int64_t packs = std::max<std::int64_t>(1, columns / width);
    while (across < most_across && across < packs) across *= 2;
    down = threads / across;
    tiles = static_cast<int>(ceil_div(packs, across));
    slices = std::clamp<std::int64_t>(wanted_blocks / tiles, 1,
                                      std::max<std::int64_t>(1, rows / (down * chunk)));
  }

  dim3 block() const { return dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)); }
  dim3 grid(std::int64_t parts) const {
    return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts));
  }
  std::int64_t blocks_down() const {
    return std::clamp<std::int64_t>(rows / (down * chunk), 1, most_blocks_down);
  }

  // Of this block and this thread; columns from `columns` on have nothing to do.
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
  // Calls body(first, count) for this thread's rows of the block's part of all: `count` of them,
  // `down` apart.
  template <class Body>
  __device__ void for_chunks(const Body& body) const {
    const std::int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
    for (std::int64_t r = rows * blockIdx.y / gridDim.y + threadIdx.y; r < end; r += down * chunk)
      body(r,
           static_cast<int>(::min(static_cast<std::int64_t>(chunk), (end - r + down - 1) / down)));
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
// rounds deviations and not the mean; what joins the chunks has the digits to bear the mean.
template <class S, int width>
struct SumsOfX {
  using T = Compute<S>;
  const S* x;

  __device__ void start(const Columns&) {}
  __device__ void add(std::int64_t at, std::int64_t step, int count, Pair (&sums)[width]) const {
    T values[chunk][width];
#pragma unroll
    for (int k = 0; k < chunk; ++k)
      if (k < count) load<S, width>(x + at + k * step, values[k]);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const T first = values[0][j];
      T sum = T(0), squares = T(0);
#pragma unroll
      for (int k = 1; k < chunk; ++k)
        if (k < count) {
          const T away = values[k][j] - first;
          sum += away;
          squares += away * away;
        }
      const double f = static_cast<double>(first), s = static_cast<double>(sum);
      sums[j].a += s + count * f;
      sums[j].b += static_cast<double>(squares) + f * (2.0 * s + count * f);
    }
  }
};

// Σ g and Σ g · (x - mean) of each column, of the g that relu lets pass.
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
      // A scale takes a root and a division in double: threads make one each, not all they need.
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
      T values[chunk / 2][width], up[chunk / 2][width];
#pragma unroll
      for (int k = 0; k < chunk / 2; ++k)
        if (half + k < count) {
          load<S, width>(x + at + (half + k) * step, values[k]);
          load<S, width>(g + at + (half + k) * step, up[k]);
        }
#pragma unroll
      for (int k = 0; k < chunk / 2; ++k)
        if (half + k < count) {
#pragma unroll
          for (int j = 0; j < width; ++j) {
            T& v = up[k][j];
            if constexpr (relu)
              v = passed<S>(v, normalised(values[k][j], mean[j], scale[j], shift[j]));
            sum[j] += v;
            centred[j] = fused_multiply_add(v, values[k][j] - mean[j], centred[j]);
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

// partial (slices, columns)
template <int width, class What>
__global__ void __launch_bounds__(threads) sums_kernel(Columns p, What what, Pair* partial) {
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

// What the sums of a whole channel are to it.
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

// 32 channels a block: its warps first take every 32nd slice of all, then a channel each.
template <class S, class Channels>
__global__ void __launch_bounds__(1024)
    finish_kernel(Columns p, const Pair* partial, Channels channels,
                  Coefficients<Compute<S>>* coefficients) {
  __shared__ double parts[2][32][33];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * 32;
  Pair own;
  if (first + threadIdx.x < p.columns)
    for (std::int64_t s = threadIdx.y; s < p.slices; s += 32)
      own = Pair::Join{}(own, partial[s * p.columns + first + threadIdx.x]);
  parts[0][threadIdx.y][threadIdx.x] = own.a;
  parts[1][threadIdx.y][threadIdx.x] = own.b;
  __syncthreads();
  const Pair all = warp_join(
      Pair{parts[0][threadIdx.x][threadIdx.y], parts[1][threadIdx.x][threadIdx.y]}, Pair::Join{});
  const std::int64_t c = first + threadIdx.y;
  if (threadIdx.x == 0 && c < p.columns) coefficients[c] = finish(channels, c, p.rows, all);
}

// y from x, or dx from x and g, for which y is computed again with relu.
template <class S, int width, bool relu>
__global__ void __launch_bounds__(threads)
    apply_kernel(Columns p, const S* x, const S* g, S* out,
                 const Coefficients<Compute<S>>* coefficients, Forwards<S> forwards) {
  using T = Compute<S>;
  constexpr int together = chunk / 2;
  const std::int64_t column = p.column<width>();
  if (column >= p.columns) return;
  Coefficients<T> c[width];
  T shift[width];
#pragma unroll
  for (int j = 0; j < width; ++j) {
    c[j] = coefficients[column + j];
    shift[j] = relu && g ? forwards.shift(column + j) : T(0);
  }
  p.for_chunks([&](std::int64_t row, int count) {
    const std::int64_t at = row * p.columns + column, step = p.down * p.columns;
#pragma unroll
    for (int half = 0; half < chunk; half += together) {
      T v[together][width], up[together][width];
#pragma unroll
      for (int k = 0; k < together; ++k)
        if (half + k < count) {
          load<S, width>(x + at + (half + k) * step, v[k]);
          if (g) load<S, width>(g + at + (half + k) * step, up[k]);
        }
#pragma unroll
      for (int k = 0; k < together; ++k)
        if (half + k < count) {
#pragma unroll
          for (int j = 0; j < width; ++j)
            v[k][j] = g ? backward<S, relu>(c[j], v[k][j], up[k][j], shift[j])
                        : forward<S, relu>(c[j], v[k][j]);
          store<S, width>(out + at + (half + k) * step, v[k]);
        }
    }
  });
}

template <class S, int width, bool relu, class What, class Channels>
void run(const KernelArgs& args, const char* name, const Columns& p, const What& what,
         const Channels& channels, const S* x, const S* g, const Forwards<S>& forwards) {
  auto* coefficients = args.scratch<Coefficients<Compute<S>>>();
  auto* partial = args.scratch<Pair>(Workspace<S, Pair>(p.columns, p.slices).coefficients);
  launch({args, name, p.grid(p.slices), p.block()}, sums_kernel<width, What>, p, what, partial);
  launch({args, name, dim3(static_cast<unsigned>(ceil_div(p.columns, 32))), dim3(32, 32)},
         finish_kernel<S, Channels>, p, partial, channels, coefficients);
  launch({args, name, p.grid(p.blocks_down()), p.block()}, apply_kernel<S, width, relu>, p, x, g,
         args.out<S>(), coefficients, forwards);
}

// Calls body with the number of columns a thread takes: a pack, or one where packs do not fit.
template <class S, class Body>
void with_width(bool packs, const Body& body) {
  if (packs)
    body(std::integral_constant<int, pack<S>>{});
  else
    body(std::integral_constant<int, 1>{});
}

template <class S>
Bytes workspace(const ChannelExtent& e) {
  return std::max(Workspace<S, Pair>(e.channels, Columns(e, 1).slices).all,
                  Workspace<S, Pair>(e.channels, Columns(e, pack<S>).slices).all);
}

}  // namespace

Kernel bind_batch_norm_columns_cuda(const KernelRequest& request, const BatchNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const ChannelExtent e(request.out().shape(), a.layout);
    return Kernel{[e, a](const KernelArgs& args) {
                    const bool packs = e.channels % pack<S> == 0 &&
                                       aligned_for_packs(args.inputs[0], args.outputs[0]);
                    with_width<S>(packs, [&](auto w) {
                      constexpr int width = decltype(w)::value;
                      with_relu(a.relu, [&](auto r) {
                        run<S, width, decltype(r)::value>(
                            args, "batch_norm", Columns(e, width), SumsOfX<S, width>{args.in<S>(0)},
                            ForwardChannels<S>(args, a), args.in<S>(0), nullptr, Forwards<S>());
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
            with_relu(a.relu, [&](auto r) {
              constexpr bool relu = decltype(r)::value;
              run<S, width, relu>(args, "batch_norm_grad", Columns(e, width),
                                  SumsOfGradients<S, width, relu>{x, g, forwards}, channels, x, g,
                                  forwards);
            });
          });
        },
        workspace<S>(e)};
  });
}

}  // namespace ebb
