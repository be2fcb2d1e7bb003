#include <algorithm>

#include "ops/cuda/calls.cuh"
#include "ops/reduce/reduce_kernels.cuh"

namespace ebb {
namespace {

// One of a group of reductions of whole tensors that lie without gaps.
template <class S, class R>
struct WholeReduction {
  const S* x;
  Output<ResultOf<S, R>, typename R::Wide> output;
  std::int64_t length, slices;
  bool packs, warps;

  template <int width>
  __device__ void fold_slices() const {
    fold::Problem p{};
    p.inner = p.length = length, p.stride = p.results = 1, p.slices = slices;
    if (warps)
      fold::rows<R, 32>(p, InMemory<S, width>{x}, output);
    else
      fold::rows<R, 256>(p, InMemory<S, width>{x}, output);
  }
};

template <class S, class R, int most>
__global__ void __launch_bounds__(256)
    reduce_wholes(const __grid_constant__ Calls<WholeReduction<S, R>, most> calls) {
  const WholeReduction<S, R> own = calls.own();
  if constexpr (sizeof(S) <= 4)
    if (own.packs) return own.template fold_slices<pack<S>>();
  own.template fold_slices<1>();
}

// A warp for each that has slices.
template <class S, class R, int most>
__global__ void __launch_bounds__(32)
    join_slices_of_wholes(const __grid_constant__ Calls<WholeReduction<S, R>, most> calls) {
  const WholeReduction<S, R> own = calls.own();
  if (own.slices == 1) return;
  const int lane = static_cast<int>(threadIdx.x);
  const auto total = joined<R>(own.output.partial, 1, own.slices, lane);
  if (lane == 0) *own.output.out = narrow<ResultOf<S, R>>(static_cast<typename R::Folded>(total));
}

template <template <class> class Fold>
Kernel bind_wholes(std::span<const KernelRequest> calls, std::span<const Attributes> attributes) {
  return dispatch_floating(calls[0], calls[0].in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using R = ReductionOf<Fold, S>;
    using W = typename R::Wide;
    std::vector<CudaReduction> reductions;
    std::int64_t most_slices = 1, partials = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      reductions.emplace_back(calls[i].in(0), attributes[i].as<ReduceAttributes>().axes);
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
            const CudaReduction& r = reductions[i];
            all.calls[i] = {own.in<S>(0),
                            {own.out<ResultOf<S, R>>(), r.p.slices > 1 ? partial : nullptr},
                            r.p.length,
                            r.p.slices,
                            r.width > 1 && aligned_for_packs(own.inputs[0]),
                            r.warps};
            if (r.p.slices > 1) partial += r.p.slices;
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

Kernel bind_sum_squares_cuda(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::SumSquares>(request, a, ReduceKind::sum_squares);
}
Kernel bind_sum_squares_group_cuda(std::span<const KernelRequest> calls,
                                   std::span<const Attributes> attributes) {
  return bind_wholes<fold::SumSquares>(calls, attributes);
}
JoinSlices join_sum_squares(DType dtype) { return join_of<fold::SumSquares>(dtype); }

}  // namespace ebb
