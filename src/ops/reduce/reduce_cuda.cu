// Reductions of strided tensors over any axes, in two shapes. Where the innermost axis is reduced,
// a warp or a block folds each result; where it is kept, each thread folds a column or a few
// neighbouring ones, and the warps of a block take rows by turns. Few results over much data are
// cut into slices, whose number depends on the shapes alone, joined in order by a second kernel.
#include <algorithm>

#include "ops/cuda/calls.cuh"
#include "ops/cuda/element.cuh"
#include "ops/cuda/group.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/strided.cuh"
#include "ops/reduce/geometry.h"

namespace ebb {
namespace {

using namespace cuda;

// Slots of neighbouring elements are folded in T and those joined in Wide.
template <class T>
struct Sum {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  static constexpr bool widens = false;
  __device__ static T identity() { return T(0); }
  __device__ static T fold(T acc, T x) { return static_cast<T>(acc + x); }
  __device__ static Wide join(Wide a, Wide b) { return a + b; }
};

template <class T>
struct SumSquares : Sum<T> {
  static constexpr bool widens = true;  // results have the type of the arithmetic
  __device__ static T fold(T acc, T x) { return static_cast<T>(acc + x * x); }
};

template <class T>
struct Max {
  using Wide = T;
  static constexpr bool widens = false;
  __device__ static T identity() {
    if constexpr (std::is_floating_point_v<T>)
      return -infinity<T>();
    else
      return std::numeric_limits<T>::lowest();
  }
  __device__ static T fold(T acc, T x) { return x > acc || x != x ? x : acc; }
  __device__ static T join(T a, T b) { return fold(a, b); }
};

template <class T>
struct Min {
  using Wide = T;
  static constexpr bool widens = false;
  __device__ static T identity() {
    if constexpr (std::is_floating_point_v<T>)
      return infinity<T>();
    else
      return std::numeric_limits<T>::max();
  }
  __device__ static T fold(T acc, T x) { return x < acc || x != x ? x : acc; }
  __device__ static T join(T a, T b) { return fold(a, b); }
};

template <class R>
struct Join {
  template <class W>
  __device__ W operator()(W a, W b) const {
    return R::join(a, b);
  }
};

// Where columns are folded, a thread fetches so many rows together, which its block's 8 warps take
// by turns; slices are made of whole rounds.
constexpr int rows_together = 8;
constexpr std::int64_t round_rows = 8 * rows_together;

// What a kernel is given: as in ReduceGeometry.
struct Problem {
  AxisSteps kept, reduced;
  std::int64_t inner, stride, results, length, slices;
  bool packs;  // the innermost axis is made of whole packs

  // Where a slice of the rows of columns begins; there are at least as many whole rounds as slices.
  __device__ std::int64_t first_row(std::int64_t slice) const {
    return slice == slices ? length : length / round_rows * slice / slices * round_rows;
  }
  // Where element `at` of those folded into a result lies, from the first.
  __device__ std::int64_t place(std::int64_t at) const {
    if (reduced.rank == 0) return at * stride;
    const std::int64_t row = quotient(at, inner);
    return reduced.offset(row) + (at - row * inner) * stride;
  }
};

// Results have the elements' type, or that of the arithmetic.
template <class S, class R>
using ResultOf = std::conditional_t<R::widens, Compute<S>, S>;

// Writes a result, or a slice of it.
template <class S, class W>
struct Output {
  S* out;
  W* partial;  // (slices, results), null without slices

  __device__ void write(std::int64_t results, std::int64_t slice, std::int64_t result,
                        W value) const {
    if (partial)
      partial[slice * results + result] = value;
    else
      out[result] = narrow<S>(static_cast<Compute<S>>(value));
  }
};

// bool and uint8 cannot cross lanes by themselves.
template <class W>
using Shuffled = std::conditional_t<sizeof(W) < 4, std::int32_t, W>;

// How the elements that are folded into a result are cut.
struct Cut {
  std::int64_t length, slices;
  bool packs;  // it is made of whole packs, and so are its slices

  __device__ std::int64_t begin(std::int64_t slice) const { return length * slice / slices; }
};

// A slice of a result, folded by `threads` threads, of which this is `lane`; all get it. Element i
// lies at base + place(i).
template <class S, class R, int threads, class Place>
__device__ typename R::Wide fold_slice(const Cut& cut, std::int64_t slice, int lane, const S* base,
                                       const Place& place) {
  using T = Compute<S>;
  using W = typename R::Wide;
  W total = static_cast<W>(R::identity());
  bool done = false;
  if constexpr (std::is_floating_point_v<T> && sizeof(S) <= 4)
    if (cut.packs) {
      const std::int64_t packs = cut.length / pack<S>, end = packs * (slice + 1) / cut.slices;
      for (std::int64_t i = packs * slice / cut.slices + lane; i < end; i += threads) {
        T values[pack<S>], part = R::identity();
        load_pack(base + place(i * pack<S>), values);
#pragma unroll
        for (int k = 0; k < pack<S>; ++k) part = R::fold(part, values[k]);
        total = R::join(total, static_cast<W>(part));
      }
      done = true;
    }
  if (!done) {
    const std::int64_t end = cut.begin(slice + 1);
    for (std::int64_t at = cut.begin(slice) + lane; at < end; at += threads) {
      const T value = widen(base[place(at)]);
      total = R::join(total, static_cast<W>(R::fold(R::identity(), value)));
    }
  }
  return static_cast<W>(
      Group<threads>{lane}.join(static_cast<Shuffled<W>>(total), [](Shuffled<W> a, Shuffled<W> b) {
        return static_cast<Shuffled<W>>(R::join(static_cast<W>(a), static_cast<W>(b)));
      }));
}

template <class S, class R, int threads>
__global__ void __launch_bounds__(256)
    reduce_rows(Problem p, const S* x, Output<ResultOf<S, R>, typename R::Wide> output) {
  const std::int64_t task =
      static_cast<std::int64_t>(blockIdx.x) * (256 / threads) + threadIdx.x / threads;
  const int lane = static_cast<int>(threadIdx.x) % threads;
  if (task >= p.results * p.slices) return;
  const std::int64_t result = task / p.slices, slice = task % p.slices;
  const auto total = fold_slice<S, R, threads>({p.length, p.slices, p.packs}, slice, lane,
                                               x + p.kept.offset(result),
                                               [&p](std::int64_t at) { return p.place(at); });
  if (lane == 0) output.write(p.results, slice, result, total);
}

// `width` neighbouring columns a thread; blockIdx: columns, kept row, slice.
template <class S, class R, int width>
__global__ void __launch_bounds__(256)
    reduce_columns(Problem p, const S* x, Output<ResultOf<S, R>, typename R::Wide> output) {
  using T = Compute<S>;
  using W = typename R::Wide;
  __shared__ W parts[8][32 * width];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x) * width;
  const std::int64_t slice = blockIdx.z;
  const std::int64_t first = p.first_row(slice) + threadIdx.y, end = p.first_row(slice + 1);
  for (std::int64_t row = blockIdx.y; row < p.results / p.inner; row += gridDim.y) {
    W total[width];
#pragma unroll
    for (int k = 0; k < width; ++k) total[k] = static_cast<W>(R::identity());
    if (column < p.inner) {
      const S* base = x + p.kept.offset(row) + column * p.stride;
      // Rows that are fetched together are folded in T, then joined with the rest.
      const auto fold = [&](const auto& offset) {
        using Slot = std::conditional_t<(width > 1), uint4, S>;  // a thread's part of a row
        const auto fetch = [&](std::int64_t r) {
          return *reinterpret_cast<const Slot*>(base + offset(r));
        };
        const auto take = [&](const auto& slots) {
          T part[width];
#pragma unroll
          for (int k = 0; k < width; ++k) part[k] = R::identity();
#pragma unroll
          for (const Slot& slot : slots) {
            T values[width];
            if constexpr (width > 1)
              unpack<S>(slot, values);
            else
              values[0] = widen(slot);
#pragma unroll
            for (int k = 0; k < width; ++k) part[k] = R::fold(part[k], values[k]);
          }
#pragma unroll
          for (int k = 0; k < width; ++k) total[k] = R::join(total[k], static_cast<W>(part[k]));
        };
        std::int64_t r = first;
        for (; r + 8 * (rows_together - 1) < end; r += round_rows) {
          Slot slots[rows_together];
#pragma unroll
          for (int i = 0; i < rows_together; ++i) slots[i] = fetch(r + 8 * i);
          take(slots);
        }
        for (; r < end; r += 8) {
          const Slot slots[1] = {fetch(r)};
          take(slots);
        }
      };
      // One axis, or several that continue one another, is the usual case, and needs no division.
      const std::int64_t step = p.reduced.stride[0];
      if (p.reduced.rank <= 1)
        fold([step](std::int64_t r) { return r * step; });
      else
        fold([&p](std::int64_t r) { return p.reduced.offset(r); });
    }
    __syncthreads();  // parts of the row before have been read
#pragma unroll
    for (int k = 0; k < width; ++k) parts[threadIdx.y][threadIdx.x * width + k] = total[k];
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.inner) continue;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      for (int y = 1; y < 8; ++y) total[k] = R::join(total[k], parts[y][threadIdx.x * width + k]);
      output.write(p.results, slice, row * p.inner + column + k, total[k]);
    }
  }
}

// A result of its slices, by a warp; partial: (slices, results), from the result's first on.
template <class R>
__device__ typename R::Wide joined(const typename R::Wide* partial, std::int64_t results,
                                   std::int64_t slices, int lane) {
  using W = typename R::Wide;
  W total = static_cast<W>(R::identity());
  for (std::int64_t s = lane; s < slices; s += 32) total = R::join(total, partial[s * results]);
  return static_cast<W>(
      warp_join(static_cast<Shuffled<W>>(total), [](Shuffled<W> a, Shuffled<W> b) {
        return static_cast<Shuffled<W>>(R::join(static_cast<W>(a), static_cast<W>(b)));
      }));
}

template <class S, class R>
__global__ void join_slices(const typename R::Wide* partial, ResultOf<S, R>* out,
                            std::int64_t results, std::int64_t slices) {
  const std::int64_t result = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (result >= results) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto total = joined<R>(partial + result, results, slices, lane);
  if (lane == 0) out[result] = narrow<ResultOf<S, R>>(static_cast<Compute<S>>(total));
}

constexpr std::int64_t wanted_blocks = 528;    // four for each of an H200's multiprocessors
constexpr std::int64_t least_elements = 2048;  // of a slice of a result

template <class S, class R>
struct Reduction {
  using W = typename R::Wide;
  using Result = ResultOf<S, R>;
  static constexpr int wide_columns =
      std::is_floating_point_v<Compute<S>> && sizeof(S) <= 4 ? pack<S> : 1;
  Problem p;
  bool inner_reduced, warps;  // a warp for each result, or a block

  Reduction(const KernelRequest& request, const ReduceAttributes& a) {
    const ReduceGeometry g(request.in(0), a.axes);
    p.kept = AxisSteps(g.kept.shape, g.kept.strides);
    p.reduced = AxisSteps(g.reduced.shape, g.reduced.strides);
    p.inner = std::max<std::int64_t>(g.inner, 1), p.stride = g.stride;
    p.results = g.results, p.length = g.length;
    inner_reduced = g.inner_reduced;
    warps = p.length <= 1024;
    p.packs = wide_columns > 1 && g.stride == 1 && g.inner % wide_columns == 0;
    for (const AxisList* axes : {&g.kept, &g.reduced})
      for (std::int64_t stride : axes->strides) p.packs &= stride % wide_columns == 0;
    const std::int64_t units =
        inner_reduced ? (warps ? ceil_div(p.results, 8) : p.results)
                      : ceil_div(p.inner, 32 * column_width(p.packs)) * (p.results / p.inner);
    const std::int64_t most = p.length / (inner_reduced ? least_elements : round_rows);
    p.slices = std::clamp<std::int64_t>(wanted_blocks / std::max<std::int64_t>(units, 1), 1,
                                        std::clamp<std::int64_t>(most, 1, 1024));
  }
  static std::int64_t column_width(bool packs) { return packs ? wide_columns : 1; }

  Bytes workspace() const {
    const std::int64_t partials = p.slices == 1 ? 0 : p.slices * p.results;
    return {partials * static_cast<std::int64_t>(sizeof(W))};
  }

  void operator()(const KernelArgs& args) const {
    if (p.results == 0) return;
    Problem now = p;
    now.packs = p.packs && aligned_for_packs(args.inputs[0]);
    const Output<Result, W> output{args.out<Result>(), p.slices > 1 ? args.scratch<W>() : nullptr};
    const S* x = args.in<S>(0);
    if (inner_reduced) {
      const std::int64_t tasks = p.results * p.slices;
      launch({args, "reduce", dim3(static_cast<unsigned>(warps ? ceil_div(tasks, 8) : tasks)),
              dim3(256)},
             warps ? reduce_rows<S, R, 32> : reduce_rows<S, R, 256>, now, x, output);
    } else {
      const std::int64_t width = column_width(now.packs);
      const dim3 grid(static_cast<unsigned>(ceil_div(p.inner, 32 * width)),
                      static_cast<unsigned>(std::min<std::int64_t>(p.results / p.inner, 65535)),
                      static_cast<unsigned>(p.slices));
      launch({args, "reduce", grid, dim3(32, 8)},
             now.packs ? reduce_columns<S, R, wide_columns> : reduce_columns<S, R, 1>, now, x,
             output);
    }
    if (p.slices > 1)
      launch(
          {args, "reduce slices", dim3(static_cast<unsigned>(ceil_div(p.results, 8))), dim3(256)},
          join_slices<S, R>, output.partial, output.out, p.results, p.slices);
  }
};

template <template <class> class R>
Kernel bind(const KernelRequest& request, const ReduceAttributes& a) {
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const Reduction<S, R<Compute<S>>> reduction(request, a);
    return Kernel{reduction, reduction.workspace()};
  });
}

// One of a group of reductions of whole tensors that lie without gaps.
template <class S, class R>
struct WholeReduction {
  const S* x;
  Output<ResultOf<S, R>, typename R::Wide> output;
  Cut cut;
  bool warps;
};

// A block for each slice of each: blockIdx.x. As in `reduce_rows`, a short one is folded by a warp.
template <class S, class R, int most>
__global__ void __launch_bounds__(256)
    reduce_wholes(const __grid_constant__ Calls<WholeReduction<S, R>, most> calls) {
  const WholeReduction<S, R> own = calls.own();
  const std::int64_t slice = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  if (slice >= own.cut.slices || (own.warps && lane >= 32)) return;
  const auto place = [](std::int64_t at) { return at; };
  const auto total = own.warps ? fold_slice<S, R, 32>(own.cut, slice, lane, own.x, place)
                               : fold_slice<S, R, 256>(own.cut, slice, lane, own.x, place);
  if (lane == 0) own.output.write(1, slice, 0, total);
}

// A warp for each that has slices.
template <class S, class R, int most>
__global__ void __launch_bounds__(32)
    join_slices_of_wholes(const __grid_constant__ Calls<WholeReduction<S, R>, most> calls) {
  const WholeReduction<S, R> own = calls.own();
  if (own.cut.slices == 1) return;
  const int lane = static_cast<int>(threadIdx.x);
  const auto total = joined<R>(own.output.partial, 1, own.cut.slices, lane);
  if (lane == 0) *own.output.out = narrow<ResultOf<S, R>>(static_cast<Compute<S>>(total));
}

template <template <class> class Fold>
Kernel bind_wholes(std::span<const KernelRequest> calls, std::span<const Attributes> attributes) {
  return dispatch_floating(calls[0], calls[0].in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using R = Fold<Compute<S>>;
    using W = typename R::Wide;
    std::vector<Reduction<S, R>> reductions;
    std::int64_t most_slices = 1, partials = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      reductions.emplace_back(calls[i], attributes[i].as<ReduceAttributes>());
      const std::int64_t slices = reductions.back().p.slices;
      most_slices = std::max(most_slices, slices);
      if (slices > 1) partials += slices;
    }
    return Kernel{
        [reductions = std::move(reductions), most_slices](const KernelArgs& args) {
          Calls<WholeReduction<S, R>, GroupOp::most_calls> all{};
          W* partial = args.scratch<W>();
          for (std::size_t i = 0; i < reductions.size(); ++i) {
            const KernelArgs own = call_of(args, i, reductions.size());
            const Problem& p = reductions[i].p;
            all.calls[i] = {own.in<S>(0),
                            {own.out<ResultOf<S, R>>(), p.slices > 1 ? partial : nullptr},
                            {p.length, p.slices, p.packs && aligned_for_packs(own.inputs[0])},
                            reductions[i].warps};
            if (p.slices > 1) partial += p.slices;
          }
          launch({args, "reduce", grid_of_calls(most_slices, reductions.size()), dim3(256)},
                 reduce_wholes<S, R, GroupOp::most_calls>, all);
          if (most_slices > 1)
            launch({args, "reduce slices", grid_of_calls(1, reductions.size()), dim3(32)},
                   join_slices_of_wholes<S, R, GroupOp::most_calls>, all);
        },
        Bytes{partials * static_cast<std::int64_t>(sizeof(W))}};
  });
}

}  // namespace

Kernel bind_sum_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Sum>(request, a);
}
Kernel bind_sum_squares_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<SumSquares>(request, a);
}
Kernel bind_sum_squares_group_cuda(std::span<const KernelRequest> calls,
                                   std::span<const Attributes> attributes) {
  return bind_wholes<SumSquares>(calls, attributes);
}
Kernel bind_max_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Max>(request, a);
}
Kernel bind_min_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<Min>(request, a);
}

}  // namespace ebb
