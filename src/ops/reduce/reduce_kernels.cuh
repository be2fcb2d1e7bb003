// Reductions of strided tensors over any axes, in two shapes. Where the innermost axis is reduced,
// a warp or a block folds each result; where it is kept, each thread folds a column or a few
// neighbouring ones, and the warps of a block take rows by turns. If there are few results over
// much data, they are divided into slices, whose number depends only on the shapes; a second kernel
// combines them in order.
//
// Each kind of reduction is instantiated in a source of its own (sum_cuda.cu and others), so that
// the compiler can work on them in parallel.
#pragma once

#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/reduce/layout_cuda.h"

namespace ebb {
namespace {

using namespace cuda;

// Results have the type of the elements or of the arithmetic.
template <class S, class R>
using ResultOf =
    std::conditional_t<R::widens || std::is_integral_v<typename R::Folded>, typename R::Folded, S>;
// The reduction of elements of S: in float for half types, and sums of integers in int64.
template <template <class> class R, class S>
using ReductionOf = R<typename R<Compute<S>>::Arithmetic>;

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

// Elements as they lie in memory, one by one or in packs.
template <class S, int elements>
struct InMemory {
  using Value = Compute<S>;
  static constexpr int width = elements, rows_in_flight = 1,
                       columns_in_flight = fold::rows_together;
  using Slot = std::conditional_t<(width > 1), uint4, S>;
  const S* x;

  __device__ Slot fetch(std::int64_t at) const { return *reinterpret_cast<const Slot*>(x + at); }
  __device__ void values(const Slot& slot, Value (&to)[width]) const {
    if constexpr (width > 1)
      unpack<S>(slot, to);
    else
      to[0] = widen(slot);
  }
};

template <class S, class R, int width, int threads>
__global__ void __launch_bounds__(256)
    reduce_rows(fold::Problem p, InMemory<S, width> x,
                Output<ResultOf<S, R>, typename R::Wide> output) {
  fold::rows<R, threads>(p, x, output);
}

template <class S, class R, int width>
__global__ void __launch_bounds__(256)
    reduce_columns(fold::Problem p, InMemory<S, width> x,
                   Output<ResultOf<S, R>, typename R::Wide> output) {
  fold::columns<R>(p, x, output);
}

// A result of its slices, by a warp; partial: (slices, results), from the result's first on.
template <class R>
__device__ typename R::Wide joined(const typename R::Wide* partial, std::int64_t results,
                                   std::int64_t slices, int lane) {
  using W = typename R::Wide;
  W total = static_cast<W>(R::identity());
  for (std::int64_t s = lane; s < slices; s += 32) total = R::join(total, partial[s * results]);
  using Lanes = fold::JoinLanes<R>;
  return static_cast<W>(warp_join(static_cast<typename Lanes::Shuffled>(total), Lanes{}));
}

template <class S, class R>
__global__ void join_slices_kernel(const typename R::Wide* partial, ResultOf<S, R>* out,
                                   std::int64_t results, std::int64_t slices) {
  const std::int64_t result = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (result >= results) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto total = joined<R>(partial + result, results, slices, lane);
  if (lane == 0) out[result] = narrow<ResultOf<S, R>>(static_cast<typename R::Folded>(total));
}

// 32 neighbouring results a block of (32, 8), which reads along memory: its warps take every eighth
// slice each.
template <class S, class R>
__global__ void __launch_bounds__(256)
    join_slices_of_many_kernel(const typename R::Wide* partial, ResultOf<S, R>* out,
                               std::int64_t results, std::int64_t slices) {
  using W = typename R::Wide;
  __shared__ W parts[8][32];
  const std::int64_t result = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  W total = static_cast<W>(R::identity());
  if (result < results) {
#pragma unroll 4
    for (std::int64_t s = threadIdx.y; s < slices; s += 8)
      total = R::join(total, partial[s * results + result]);
  }
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || result >= results) return;
  for (int k = 1; k < 8; ++k) total = R::join(total, parts[k][threadIdx.x]);
  out[result] = narrow<ResultOf<S, R>>(static_cast<typename R::Folded>(total));
}

template <class S, class R>
void launch_join(const KernelArgs& args, const CudaReduction& r, const void* partial) {
  const bool many = r.p.results >= 32;
  const std::int64_t blocks = ceil_div(r.p.results, many ? 32 : 8);
  launch(
      {args, "reduce slices", dim3(static_cast<unsigned>(blocks)), many ? dim3(32, 8) : dim3(256)},
      many ? join_slices_of_many_kernel<S, R> : join_slices_kernel<S, R>,
      static_cast<const typename R::Wide*>(partial), args.out<ResultOf<S, R>>(), r.p.results,
      r.p.slices);
}

template <class S, class R>
struct Reduction {
  using W = typename R::Wide;
  using Result = ResultOf<S, R>;
  CudaReduction r;

  template <int width>
  void start(const KernelArgs& args, const Output<Result, W>& output) const {
    const InMemory<S, width> x{args.in<S>(0)};
    const Launch where{args, "reduce", r.grid(width), r.block()};
    if (!r.inner_reduced)
      launch(where, reduce_columns<S, R, width>, r.p, x, output);
    else if (r.warps)
      launch(where, reduce_rows<S, R, width, 32>, r.p, x, output);
    else
      launch(where, reduce_rows<S, R, width, 256>, r.p, x, output);
  }

  void operator()(const KernelArgs& args) const {
    if (r.p.results == 0) return;
    const Output<Result, W> output{args.out<Result>(),
                                   r.p.slices > 1 ? args.scratch<W>() : nullptr};
    bool started = false;
    if constexpr (std::is_floating_point_v<Compute<S>> && sizeof(S) <= 4)
      if (r.width > 1 && aligned_for_packs(args.inputs[0])) {
        start<pack<S>>(args, output);
        started = true;
      }
    if (!started) start<1>(args, output);
    if (r.p.slices > 1) launch_join<S, R>(args, r, output.partial);
  }
};

template <template <class> class R>
Kernel bind(const KernelRequest& request, const ReduceAttributes& a, ReduceKind kind) {
  const CudaReduction r(request.in(0), a.axes);
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{Reduction<S, ReductionOf<R, S>>{r}, r.partials(kind, request.in(0).dtype())};
  });
}

template <template <class> class R>
JoinSlices join_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return launch_join<double, ReductionOf<R, double>>;
    case DType::float32:
      return launch_join<float, ReductionOf<R, float>>;
    case DType::float16:
      return launch_join<Half, ReductionOf<R, Half>>;
    case DType::bfloat16:
      return launch_join<BFloat16, ReductionOf<R, BFloat16>>;
    case DType::int64:
      return launch_join<std::int64_t, ReductionOf<R, std::int64_t>>;
    case DType::int32:
      return launch_join<std::int32_t, ReductionOf<R, std::int32_t>>;
    default:
      return launch_join<std::uint8_t, ReductionOf<R, std::uint8_t>>;
  }
}

}  // namespace
}  // namespace ebb
