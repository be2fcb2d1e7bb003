// The gradients of layer_norm and rms_norm over contiguous rows.
//
// With v = (x - mean) · rstd and s = g · weight, the gradient of a row is
//   dx = rstd · (s - mean(s) - v · mean(s · v))
// and the gradients of weight and bias are Σ g · v and Σ g over all rows. Another gradient of x is
// added after dx is rounded, like a separate sum.
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/row_norm/row_norm.h"

namespace ebb {
namespace {

using namespace cuda;

// An addition that is never contracted with a product into a fused multiply-add.
__device__ inline float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double rounded_sum(double a, double b) { return __dadd_rn(a, b); }

template <class T>
struct Coefficients {
  T mean, rstd, offset, slope;  // dx = rstd · (s - offset - (x - mean) · slope)

  // From Σ s and Σ s · (x - mean).
  template <class Sum>
  __device__ Coefficients(T mean, T rstd, bool centred, Sum total, Sum total_centred,
                          std::int64_t columns)
      : mean(mean), rstd(rstd) {
    const Sum n = static_cast<Sum>(columns), wide = static_cast<Sum>(rstd);
    offset = centred ? static_cast<T>(total / n) : T(0);
    slope = static_cast<T>(total_centred / n * wide * wide);
  }
  __device__ T operator()(T x, T s) const { return rstd * (s - offset - (x - mean) * slope); }
};

struct Gradient {
  const void *in, *grad, *means, *rstds, *weight, *added;  // all but in, grad and rstds may be null
  void* out;

  // --- Single rows: if no sums are requested, or if a team cannot keep a row

  // s in place of g.
  template <class S, class Walk, class T>
  __device__ void scale(const Walk& walk, std::int64_t column, T (&g)[Walk::width]) const {
    if (!weight) return;
    T w[Walk::width];
    walk.load(static_cast<const S*>(weight) + column, w);
#pragma unroll
    for (int k = 0; k < Walk::width; ++k) g[k] *= w[k];
  }

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const std::int64_t first = r * walk.columns;
    const auto x = walk.open(static_cast<const S*>(in) + first);
    const auto g = walk.open(static_cast<const S*>(grad) + first);
    const T mean = means ? static_cast<const T*>(means)[r] : T(0);
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
    const Coefficients<T> dx(mean, static_cast<const T*>(rstds)[r], means != nullptr,
                             means ? walk.sum(total) : 0.0, walk.sum(centred), walk.columns);
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], s[Walk::width];
      x.get(slot, column, v);
      g.get(slot, column, s);
      scale<S>(walk, column, s);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) v[k] = dx(v[k], s[k]);
      if (added) {
        T other[Walk::width];
        walk.load(static_cast<const S*>(added) + first + column, other);
#pragma unroll
        for (int k = 0; k < Walk::width; ++k) v[k] = rounded_sum(widen(narrow<S>(v[k])), other[k]);
      }
      walk.store(static_cast<S*>(out) + first + column, v);
    });
  }
};

// Rows are divided into slices whose number depends only on the shape; each has its own sums over
// its rows, (slices, sums, columns), added in order at the end.
struct Slices {
  std::int64_t count, sums;
  Slices(RowShape shape, const RowNormGradAttributes& a)
      : count(std::clamp<std::int64_t>(shape.rows / 32, 1, 264)),
        sums(a.weight_grad + a.bias_grad + a.sum) {}
};

// The requested sums, in the order in which a slice stores them.
template <class T>
struct SliceSums {
  T* partial;
  std::int64_t slices;
  bool asked[3];  // Σ g · v, Σ g, Σ of the result

  __device__ std::int64_t count() const { return asked[0] + asked[1] + asked[2]; }
  // Calls body(sum, its offset) for the sums of a slice.
  template <class Body>
  __device__ void each(std::int64_t slice, std::int64_t columns, const Body& body) const {
    T* at = partial + slice * count() * columns;
#pragma unroll
    for (int sum = 0; sum < 3; ++sum)
      if (asked[sum]) {
        body(sum, at);
        at += columns;
      }
  }
};

// --- Teams: dx of a slice's rows and the slice's sums in one walk
//
// A team of warps processes some rows at a time, each thread the same columns of every row, while
// the next rows are being loaded. Threads keep the sums of their columns in registers; the teams of
// a block add theirs in turn.

// How the rows of a shape are given to teams.
struct Teams {
  int slots;  // packs of a row that each thread has: 1, 2 or 4
  int warps;  // of a team
  int count;  // of a block

  static constexpr int most_warps = 8, most_slots = 4;

  explicit Teams(std::int64_t packs)
      : slots(packs <= 32 * most_warps   ? 1
              : packs <= 64 * most_warps ? 2
                                         : most_slots),
        warps(static_cast<int>(ceil_div(packs, 32 * slots))),
        count(warps < most_warps ? most_warps / warps : 1) {}
  bool fit() const { return warps <= most_warps; }
  int threads() const { return 32 * warps * count; }
};

// Waits for the threads of one team. Barrier 0 is the block's.
__device__ inline void wait_for_team(int team, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}

// For half types, float is accurate enough for sums over a row.
template <class S>
using RowSum = std::conditional_t<sizeof(S) == 2, float, double>;

template <class S, int slots>
struct TeamKernel {
  using T = Compute<S>;
  using Sum = RowSum<S>;
  static constexpr int width = pack<S>;
  static constexpr int rows = slots == 1 ? 2 : 1;                  // at a time
  static constexpr int ahead = slots < Teams::most_slots ? 2 : 1;  // of them: these and the next

  // Rows in their storage dtype.
  struct Rows {
    uint4 x[rows][slots], g[rows][slots], added[rows][slots];
    T mean[rows], rstd[rows];
  };

  Gradient gradient;
  SliceSums<T> sums;
  std::int64_t columns;
  int warps, team, lane;  // lane: of the thread in its team

  __device__ std::int64_t column(int slot) const {
    return (static_cast<std::int64_t>(slot) * warps * 32 + lane) * width;
  }
  __device__ uint4 fetch(const void* from, std::int64_t r, int slot) const {
    return *reinterpret_cast<const uint4*>(static_cast<const S*>(from) + r * columns +
                                           column(slot));
  }
  __device__ void load(Rows& to, std::int64_t first, std::int64_t end) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const std::int64_t r = first + i;
      const bool there = r < end;
      to.mean[i] = there && gradient.means ? static_cast<const T*>(gradient.means)[r] : T(0);
      to.rstd[i] = there ? static_cast<const T*>(gradient.rstds)[r] : T(0);
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) {
        to.x[i][slot] = to.g[i][slot] = to.added[i][slot] = make_uint4(0, 0, 0, 0);
        if (!there || column(slot) >= columns) continue;
        to.x[i][slot] = fetch(gradient.in, r, slot);
        to.g[i][slot] = fetch(gradient.grad, r, slot);
        if (gradient.added) to.added[i][slot] = fetch(gradient.added, r, slot);
      }
    }
  }

  // Σ s and Σ s · (x - mean) over each row, for all threads of the team. Packs that are not there
  // are zeros in g, and add nothing.
  __device__ void sum_rows(const Rows& at, const uint4 (&weight)[slots], Sum (&totals)[rows][2],
                           Sum* shared) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      totals[i][0] = totals[i][1] = Sum(0);
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) {
        T v[width], s[width], part = T(0), centred = T(0);
        unpack<S>(at.x[i][slot], v);
        scaled(at.g[i][slot], weight[slot], s);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          part += s[k];
          centred += s[k] * (v[k] - at.mean[i]);
        }
        totals[i][0] += static_cast<Sum>(part);
        totals[i][1] += static_cast<Sum>(centred);
      }
      totals[i][0] = warp_join(totals[i][0], Plus{});
      totals[i][1] = warp_join(totals[i][1], Plus{});
    }
    if (warps == 1) return;
    if (lane % 32 == 0)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        shared[(lane / 32 * rows + i) * 2] = totals[i][0];
        shared[(lane / 32 * rows + i) * 2 + 1] = totals[i][1];
      }
    wait_for_team(team, 32 * warps);
#pragma unroll
    for (int i = 0; i < rows; ++i) totals[i][0] = totals[i][1] = Sum(0);
    for (int warp = 0; warp < warps; ++warp)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        totals[i][0] += shared[(warp * rows + i) * 2];
        totals[i][1] += shared[(warp * rows + i) * 2 + 1];
      }
  }

  // g, or g · weight.
  __device__ void scaled(uint4 g, uint4 weight, T (&s)[width]) const {
    unpack<S>(g, s);
    if (!gradient.weight) return;
    T w[width];
    unpack<S>(weight, w);
#pragma unroll
    for (int k = 0; k < width; ++k) s[k] *= w[k];
  }

  // Writes the rows' gradients and adds the rows to the sums of columns.
  __device__ void finish(const Rows& at, const uint4 (&weight)[slots], const Sum (&totals)[rows][2],
                         std::int64_t first, std::int64_t end, T (&sum)[3][slots][width]) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      if (first + i >= end) continue;
      const Coefficients<T> dx(at.mean[i], at.rstd[i], gradient.means != nullptr, totals[i][0],
                               totals[i][1], columns);
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) {
        if (column(slot) >= columns) continue;
        T v[width], g[width], s[width], other[width];
        unpack<S>(at.x[i][slot], v);
        unpack<S>(at.g[i][slot], g);
        scaled(at.g[i][slot], weight[slot], s);
        unpack<S>(at.added[i][slot], other);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          sum[0][slot][k] += g[k] * ((v[k] - dx.mean) * dx.rstd);
          sum[1][slot][k] += g[k];
          v[k] = widen(narrow<S>(dx(v[k], s[k])));
          if (gradient.added) v[k] = widen(narrow<S>(rounded_sum(v[k], other[k])));
          sum[2][slot][k] += v[k];
        }
        store_pack(static_cast<S*>(gradient.out) + (first + i) * columns + column(slot), v);
      }
    }
  }

  // The block's sums: of its only team, or of teams in turn in shared memory.
  __device__ void write_sums(const T (&sum)[3][slots][width], int teams, T* shared) const {
    const std::int64_t slice = blockIdx.x;
    const auto add = [&](int which, T* to, bool first) {
#pragma unroll
      for (int slot = 0; slot < slots; ++slot) {
        if (column(slot) >= columns) continue;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          T& at = to[column(slot) + k];
          at = first ? sum[which][slot][k] : at + sum[which][slot][k];
        }
      }
    };
    if (teams == 1) {
      sums.each(slice, columns, [&](int which, T* to) { add(which, to, true); });
      return;
    }
    for (int turn = 0; turn < teams; ++turn) {
      if (turn == team)
        sums.each(0, columns,
                  [&](int which, T* to) { add(which, shared + (to - sums.partial), turn == 0); });
      __syncthreads();
    }
    const std::int64_t count = sums.count() * columns;
    for (std::int64_t k = threadIdx.x; k < count; k += blockDim.x)
      sums.partial[slice * count + k] = shared[k];
  }

  __device__ void run(std::int64_t all_rows, int teams, Sum* row_sums, T* column_sums) const {
    const std::int64_t slice = blockIdx.x, end = all_rows * (slice + 1) / sums.slices;
    uint4 weight[slots];
#pragma unroll
    for (int slot = 0; slot < slots; ++slot)
      weight[slot] = gradient.weight && column(slot) < columns ? fetch(gradient.weight, 0, slot)
                                                               : make_uint4(0, 0, 0, 0);
    T sum[3][slots][width] = {};
    const std::int64_t step = static_cast<std::int64_t>(teams) * rows;
    std::int64_t r = all_rows * slice / sums.slices + team * rows;
    Rows now, next;
    if (ahead == 2) load(now, r, end);
    for (int turn = 0; r < end; r += step, turn ^= 1) {
      if (ahead == 2)
        load(next, r + step, end);
      else
        load(now, r, end);
      Sum totals[rows][2];
      // Two alternating buffers: a warp may be one iteration ahead of others that still read.
      sum_rows(now, weight, totals, row_sums + (team * 2 + turn) * (2 * rows * warps));
      finish(now, weight, totals, r, end, sum);
      if (ahead == 2) now = next;
    }
    write_sums(sum, teams, column_sums);
  }
};

template <class S, int slots>
__global__ void __launch_bounds__(32 * Teams::most_warps, slots == 1 ? 2 : 1)
    gradient_and_sums(Gradient gradient, SliceSums<Compute<S>> sums, std::int64_t rows,
                      std::int64_t columns, int warps) {
  using Kernel = TeamKernel<S, slots>;
  __shared__ typename Kernel::Sum row_sums[Teams::most_warps * 2 * (2 * Kernel::rows)];
  // Several teams share a block only where rows are short.
  constexpr int shared_columns = slots == 1 ? Teams::most_warps / 2 * 32 * pack<S> : 1;
  __shared__ Compute<S> column_sums[3 * shared_columns];
  const int thread = static_cast<int>(threadIdx.x), threads = 32 * warps;
  const Kernel kernel{gradient, sums, columns, warps, thread / threads, thread % threads};
  kernel.run(rows, static_cast<int>(blockDim.x) / threads, row_sums, column_sums);
}

// --- Rows that a team cannot keep: sums in separate kernels

// Σ g · v and Σ g, or Σ of the result: a thread for each column of a slice.
template <class S>
__global__ void slice_sums(Gradient gradient, SliceSums<Compute<S>> sums, std::int64_t rows,
                           std::int64_t columns, bool of_result) {
  using T = Compute<S>;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t slice = blockIdx.y, end = rows * (slice + 1) / sums.slices;
  T sum[3] = {};
  for (std::int64_t r = rows * slice / sums.slices; r < end; ++r) {
    const auto at = [&](const void* matrix) {
      return widen(static_cast<const S*>(matrix)[r * columns + column]);
    };
    if (of_result) {
      sum[2] += at(gradient.out);
      continue;
    }
    const T mean = gradient.means ? static_cast<const T*>(gradient.means)[r] : T(0);
    sum[0] +=
        at(gradient.grad) * ((at(gradient.in) - mean) * static_cast<const T*>(gradient.rstds)[r]);
    sum[1] += at(gradient.grad);
  }
  sums.each(slice, columns, [&](int which, T* to) {
    if (of_result == (which == 2)) to[column] = sum[which];
  });
}

template <class S>
void run_apart(const KernelArgs& args, const Gradient& gradient, const SliceSums<Compute<S>>& sums,
               RowShape shape, bool packs) {
  const auto sum = [&](bool of_result) {
    launch({args, "row_norm_grad sums",
            dim3(static_cast<unsigned>(ceil_div(shape.columns, 128)),
                 static_cast<unsigned>(sums.slices)),
            dim3(128)},
           slice_sums<S>, gradient, sums, shape.rows, shape.columns, of_result);
  };
  if (sums.asked[0] || sums.asked[1]) sum(false);  // first: dx may be written over x or g
  launch_rows<S>(args, "row_norm_grad", gradient, shape, packs);
  if (sums.asked[2]) sum(true);
}

template <class S>
void run(const KernelArgs& args, RowShape shape, const RowNormGradAttributes& a,
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
  const SliceSums<T> sums{args.scratch<T>(), slices.count, {a.weight_grad, a.bias_grad, a.sum}};
  const bool packs = sizeof(S) <= 4 && shape.columns % pack<S> == 0 &&
                     aligned_for_packs(args.inputs[0], args.inputs[1], args.outputs[0]) &&
                     aligned_for_packs(static_cast<const std::byte*>(gradient.weight),
                                       static_cast<const std::byte*>(gradient.added));
  if (slices.sums == 0) return launch_rows<S>(args, "row_norm_grad", gradient, shape, packs);
  const Teams teams(ceil_div(shape.columns, pack<S>));
  if (packs && teams.fit()) {
    if constexpr (sizeof(S) <= 4)
      launch({args, "row_norm_grad", dim3(static_cast<unsigned>(slices.count)),
              dim3(static_cast<unsigned>(teams.threads()))},
             teams.slots == 1   ? gradient_and_sums<S, 1>
             : teams.slots == 2 ? gradient_and_sums<S, 2>
                                : gradient_and_sums<S, 4>,
             gradient, sums, shape.rows, shape.columns, teams.warps);
  } else {
    run_apart<S>(args, gradient, sums, shape, packs);
  }
  JoinedSums<S> joined{{}, static_cast<int>(slices.sums)};
  for (int k = 0; k < joined.count; ++k) joined.out[k] = args.out<S>(k + 1);
  join_slices(args, sums.partial, slices.count, joined, shape.columns);
}

}  // namespace

template <Centring centring>
Kernel bind_row_norm_grad_cuda(const KernelRequest& request, const RowNormGradAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const RowShape shape(request.out().shape());
    const Slices slices(shape, a);
    return Kernel{[shape, a](const KernelArgs& args) { run<S>(args, shape, a, centring); },
                  slices.count * slices.sums * shape.columns *
                      Bytes{static_cast<std::int64_t>(sizeof(Compute<S>))}};
  });
}

template Kernel bind_row_norm_grad_cuda<Centring::no>(const KernelRequest&,
                                                      const RowNormGradAttributes&);
template Kernel bind_row_norm_grad_cuda<Centring::yes>(const KernelRequest&,
                                                       const RowNormGradAttributes&);

}  // namespace ebb
