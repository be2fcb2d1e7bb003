// layer_norm and rms_norm over contiguous rows. A row is read once, into registers where it fits.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/row_norm/row_norm.h"

namespace ebb {
namespace {

using namespace cuda;

struct Forward {
  const void *in, *weight, *bias;  // the last two may be null
  void *out, *means, *rstds;       // means is null without centring
  double eps;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    S* y = static_cast<S*>(out) + r * walk.columns;
    const double n = static_cast<double>(walk.columns);
    const T mean = means ? static_cast<T>(walk.sum_over(x, [](T v) { return v; }) / n) : T(0);
    const double square = walk.sum_over(x, [mean](T v) { return (v - mean) * (v - mean); }) / n;
    const T rstd = static_cast<T>(1.0 / square_root(square + eps));
    if (walk.lane == 0) {
      if (means) static_cast<T*>(means)[r] = mean;
      static_cast<T*>(rstds)[r] = rstd;
    }
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], w[Walk::width], b[Walk::width];
      x.get(slot, column, v);
      if (weight) walk.load(static_cast<const S*>(weight) + column, w);
      if (bias) walk.load(static_cast<const S*>(bias) + column, b);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) {
        v[k] = (v[k] - mean) * rstd;
        if (weight) v[k] *= w[k];
        if (bias) v[k] += b[k];
      }
      walk.store(y + column, v);
    });
  }
};

// --- Backward
//
// With v = (x - mean) · rstd and s = g · weight, the gradient of a row is
//   dx = rstd · (s - mean(s) - v · mean(s · v))
// and that of weight and bias is Σ g · v and Σ g over all rows. Another gradient of x is added to
// dx after dx is rounded, as a sum by itself would have it.

// A sum of numbers as they are: never made one operation with the product that gave one of them.
__device__ inline float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double rounded_sum(double a, double b) { return __dadd_rn(a, b); }

struct Gradient {
  const void *in, *grad, *means, *rstds, *weight, *added;  // all but in, grad and rstds may be null
  void* out;

  template <class T>
  struct Coefficients {
    T mean, rstd, offset, slope;  // dx = rstd · (s - offset - (x - mean) · slope)

    __device__ T operator()(T x, T s) const { return rstd * (s - offset - (x - mean) * slope); }
  };

  // s in place of g.
  template <class S, class Walk, class T>
  __device__ void scale(const Walk& walk, std::int64_t column, T (&g)[Walk::width]) const {
    if (!weight) return;
    T w[Walk::width];
    walk.load(static_cast<const S*>(weight) + column, w);
#pragma unroll
    for (int k = 0; k < Walk::width; ++k) g[k] *= w[k];
  }

  // Stores dx, of the row that begins at element `first`, or its sum with the other gradient.
  template <class S, class Walk, class T>
  __device__ void store(const Walk& walk, std::int64_t first, std::int64_t column,
                        T (&dx)[Walk::width]) const {
    if (added) {
      T other[Walk::width];
      walk.load(static_cast<const S*>(added) + first + column, other);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) dx[k] = rounded_sum(widen(narrow<S>(dx[k])), other[k]);
    }
    walk.store(static_cast<S*>(out) + first + column, dx);
  }

  // Has the other gradient of a row brought near before it is read: there are no registers left to
  // keep it in meanwhile.
  template <class S, class Walk>
  __device__ void expect(const Walk& walk, std::int64_t first) const {
    if (!added) return;
    walk.slots([&](int, std::int64_t column) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const S*>(added) + first + column));
    });
  }

  template <class S, class Walk>
  __device__ Coefficients<Compute<S>> coefficients(std::int64_t r, const Walk& walk,
                                                   const typename Walk::Row& x,
                                                   const typename Walk::Row& g) const {
    using T = Compute<S>;
    const T mean = means ? static_cast<const T*>(means)[r] : T(0);
    const T rstd = static_cast<const T*>(rstds)[r];
    double total = 0.0, centred = 0.0;  // Σ s, Σ s · (x - mean)
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], s[Walk::width], part = T(0), part_centred = T(0);
      x.get(slot, column, v);
      g.get(slot, column, s);
      scale<S>(walk, column, s);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) {
        part += s[k];
        part_centred += s[k] * (v[k] - mean);
      }
      total += static_cast<double>(part);
      centred += static_cast<double>(part_centred);
    });
    const double n = static_cast<double>(walk.columns), wide = static_cast<double>(rstd);
    return {mean, rstd, means ? static_cast<T>(walk.sum(total) / n) : T(0),
            static_cast<T>(walk.sum(centred) / n * wide * wide)};
  }

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    const auto g = walk.open(static_cast<const S*>(grad) + r * walk.columns);
    const auto c = coefficients<S>(r, walk, x, g);
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], s[Walk::width];
      x.get(slot, column, v);
      g.get(slot, column, s);
      scale<S>(walk, column, s);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) v[k] = c(v[k], s[k]);
      store<S>(walk, r * walk.columns, column, v);
    });
  }
};

// Rows are cut into slices whose number depends on the shape alone; each has its own sums over its
// rows, (slices, sums, columns), joined in order at the end.
struct Slices {
  std::int64_t count, sums;
  Slices(RowShape shape, const RowNormGradAttributes& a)
      : count(std::clamp<std::int64_t>(shape.rows / 32, 1, 264)),
        sums(a.weight_grad + a.bias_grad) {}
};

template <class T>
struct SliceSums {
  T* partial;
  std::int64_t slices;
  bool weight, bias;

  __device__ T* at(std::int64_t slice, std::int64_t columns) const {
    return partial + slice * (weight + bias) * columns;
  }
};

// dx of a slice's rows and the slice's sums in one walk. Each thread has the sums of its columns in
// registers; the warps of a block, which have rows of their own, add theirs up in turn.
template <class S, int threads>
__global__ void __launch_bounds__(256, 2)  // two blocks share a multiprocessor: there are 264
    gradient_and_sums(Gradient gradient, SliceSums<Compute<S>> sums, std::int64_t rows,
                      std::int64_t columns) {
  using T = Compute<S>;
  using Rows = Walk<S, threads, Access::registers>;
  constexpr int parts = 256 / threads;  // groups of a block
  Rows walk;
  walk.lane = static_cast<int>(threadIdx.x) % threads;
  walk.columns = columns;
  const int part = static_cast<int>(threadIdx.x) / threads;
  T weight_sum[Rows::kept] = {}, bias_sum[Rows::kept] = {};
  const std::int64_t slice = blockIdx.x, end = rows * (slice + 1) / sums.slices;
  for (std::int64_t r = rows * slice / sums.slices + part; r < end; r += parts) {
    const auto x = walk.open(static_cast<const S*>(gradient.in) + r * columns);
    const auto g = walk.open(static_cast<const S*>(gradient.grad) + r * columns);
    gradient.expect<S>(walk, r * columns);
    const auto c = gradient.template coefficients<S>(r, walk, x, g);
    walk.slots([&](int slot, std::int64_t column) {
      T v[Rows::width], s[Rows::width];
      x.get(slot, column, v);
      g.get(slot, column, s);
#pragma unroll
      for (int k = 0; k < Rows::width; ++k) {
        weight_sum[slot * Rows::width + k] += s[k] * ((v[k] - c.mean) * c.rstd);
        bias_sum[slot * Rows::width + k] += s[k];
      }
      gradient.scale<S>(walk, column, s);
#pragma unroll
      for (int k = 0; k < Rows::width; ++k) v[k] = c(v[k], s[k]);
      gradient.store<S>(walk, r * columns, column, v);
    });
  }
  T* weight_out = sums.at(slice, columns);
  T* bias_out = weight_out + (sums.weight ? columns : 0);
  const auto add = [&](T* weights, T* biases, bool first) {
    walk.slots([&](int slot, std::int64_t column) {
#pragma unroll
      for (int k = 0; k < Rows::width; ++k) {
        T &w = weights[column + k], &b = biases[column + k];
        if (sums.weight) w = (first ? T(0) : w) + weight_sum[slot * Rows::width + k];
        if (sums.bias) b = (first ? T(0) : b) + bias_sum[slot * Rows::width + k];
      }
    });
  };
  if constexpr (parts == 1) {
    add(weight_out, bias_out, true);
  } else {
    // In turn, in shared memory; then all of them write.
    constexpr int most = threads * kept_elements;
    __shared__ T shared[2][most];
    for (int turn = 0; turn < parts; ++turn) {
      if (turn == part) add(shared[0], shared[1], turn == 0);
      __syncthreads();
    }
    for (int column = static_cast<int>(threadIdx.x); column < columns; column += 256) {
      if (sums.weight) weight_out[column] = shared[0][column];
      if (sums.bias) bias_out[column] = shared[1][column];
    }
  }
}

// The sums alone, for rows that do not fit in registers: a thread for each column of a slice.
template <class S>
__global__ void slice_sums(Gradient gradient, SliceSums<Compute<S>> sums, std::int64_t rows,
                           std::int64_t columns) {
  using T = Compute<S>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t slice = blockIdx.y, end = rows * (slice + 1) / sums.slices;
  T weight_sum = T(0), bias_sum = T(0);
  for (std::int64_t r = rows * slice / sums.slices; r < end; ++r) {
    const T mean = gradient.means ? static_cast<const T*>(gradient.means)[r] : T(0);
    const T rstd = static_cast<const T*>(gradient.rstds)[r];
    const T x = widen(static_cast<const S*>(gradient.in)[r * columns + column]);
    const T g = widen(static_cast<const S*>(gradient.grad)[r * columns + column]);
    weight_sum += g * ((x - mean) * rstd);
    bias_sum += g;
  }
  T* out = sums.at(slice, columns);
  if (sums.weight) out[column] = weight_sum;
  if (sums.bias) out[(sums.weight ? columns : 0) + column] = bias_sum;
}

template <class S>
void run_backward(const KernelArgs& args, RowShape shape, const RowNormGradAttributes& a,
                  Centring centring) {
  using T = Compute<S>;
  const RowNormGradInputs at(centring, a);
  const Gradient gradient{args.inputs[0],
                          args.inputs[1],
                          centring == Centring::yes ? args.inputs[2] : nullptr,
                          args.inputs[at.rstd],
                          a.weight ? args.inputs[at.weight] : nullptr,
                          a.added ? args.inputs[at.added] : nullptr,
                          args.outputs[0]};
  const Slices slices(shape, a);
  const SliceSums<T> sums{args.scratch<T>(), slices.count, a.weight_grad, a.bias_grad};
  const bool packs = sizeof(S) <= 4 && shape.columns % pack<S> == 0 &&
                     aligned_for_packs(args.inputs[0], args.inputs[1], args.outputs[0]) &&
                     aligned_for_packs(static_cast<const std::byte*>(gradient.weight),
                                       static_cast<const std::byte*>(gradient.added));
  const unsigned count = static_cast<unsigned>(slices.count);
  if (slices.sums == 0) {
    launch_rows<S>(args, "row_norm_grad", gradient, shape, packs);
    return;
  }
  bool fused = false;
  if constexpr (sizeof(S) <= 4) {
    fused = packs && shape.columns <= 256 * kept_elements;
    if (fused)
      launch({args, "row_norm_grad", dim3(count), dim3(256)},
             shape.columns <= 32 * kept_elements ? gradient_and_sums<S, 32>
                                                 : gradient_and_sums<S, 256>,
             gradient, sums, shape.rows, shape.columns);
  }
  if (!fused) {  // the sums first: dx may be written over x or g
    launch({args, "row_norm_grad sums",
            dim3(static_cast<unsigned>(ceil_div(shape.columns, 128)), count), dim3(128)},
           slice_sums<S>, gradient, sums, shape.rows, shape.columns);
    launch_rows<S>(args, "row_norm_grad", gradient, shape, packs);
  }
  const std::int64_t stride = slices.sums * shape.columns;
  if (a.weight_grad)
    join_slices(args, sums.partial, slices.count, stride, args.out<S>(1), shape.columns);
  if (a.bias_grad)
    join_slices(args, sums.partial + (a.weight_grad ? shape.columns : 0), slices.count, stride,
                args.out<S>(a.weight_grad ? 2 : 1), shape.columns);
}

}  // namespace

template <Centring centring>
Kernel bind_row_norm_cuda(const KernelRequest& request, const RowNormAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.out().shape()), a](const KernelArgs& args) {
      constexpr bool centred = centring == Centring::yes;
      const Forward forward{args.inputs[0],
                            a.weight ? args.inputs[1] : nullptr,
                            a.bias ? args.inputs[a.weight ? 2 : 1] : nullptr,
                            args.outputs[0],
                            centred ? args.outputs[1] : nullptr,
                            args.outputs[centred ? 2 : 1],
                            a.eps};
      launch_rows<S>(args, "row_norm", forward, shape,
                     aligned_for_packs(args.inputs[0], args.outputs[0]) &&
                         aligned_for_packs(static_cast<const std::byte*>(forward.weight),
                                           static_cast<const std::byte*>(forward.bias)));
    }};
  });
}

template <Centring centring>
Kernel bind_row_norm_grad_cuda(const KernelRequest& request, const RowNormGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const RowShape shape(request.out().shape());
    const Slices slices(shape, a);
    return Kernel{[shape, a](const KernelArgs& args) { run_backward<S>(args, shape, a, centring); },
                  slices.count * slices.sums * shape.columns *
                      Bytes{static_cast<std::int64_t>(sizeof(Compute<S>))}};
  });
}

template Kernel bind_row_norm_cuda<Centring::no>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_cuda<Centring::yes>(const KernelRequest&, const RowNormAttributes&);
template Kernel bind_row_norm_grad_cuda<Centring::no>(const KernelRequest&,
                                                      const RowNormGradAttributes&);
template Kernel bind_row_norm_grad_cuda<Centring::yes>(const KernelRequest&,
                                                       const RowNormGradAttributes&);

}  // namespace ebb
