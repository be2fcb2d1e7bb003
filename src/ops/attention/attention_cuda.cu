// Selects attention's CUDA kernels.
#include "ops/attention/problem.cuh"

namespace ebb {
namespace {

using namespace attention;

template <class S>
bool fits_mma(const CudaProblem& p) {
  return sizeof(S) == 2 && std::max(p.size, p.value_size) <= 128;
}

#ifdef EBB_HAS_WGMMA
constexpr bool has_wgmma = true;
#else
constexpr bool has_wgmma = false;
#endif

// Workspace of backward: at most two numbers per query, rounded up to whole tiles.
template <class S>
Bytes backward_workspace(const CudaProblem& p) {
  const std::int64_t heads = static_cast<std::int64_t>(p.batches) * p.heads;
  const std::int64_t numbers =
      sizeof(S) == 2 && has_wgmma ? heads * cuda::ceil_div(p.queries, 64) * 128 : heads * p.queries;
  return numbers * Bytes{static_cast<std::int64_t>(sizeof(Compute<S>))};
}

}  // namespace

Kernel bind_attention_cuda(const KernelRequest& request, const AttentionAttributes& attributes) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[p = CudaProblem(request, attributes, 3)](const KernelArgs& args) {
      const ForwardArgs<S> a{
          args.in<S>(0),          args.in<S>(1),
          args.in<S>(2),          p.masked ? args.inputs[3] : nullptr,
          args.control,           {args.out<S>(0), std::int64_t{p.heads} * p.value_size},
          args.out<Compute<S>>(1)};
      if constexpr (sizeof(S) == 2) {
        if constexpr (has_wgmma)
          if (forward_wgmma(args, p, a)) return;
        if (fits_mma<S>(p)) return forward_mma(args, p, a);
      }
      forward_simt(args, p, a);
    }};
  });
}

Kernel bind_attention_grad_cuda(const KernelRequest& request,
                                const AttentionGradAttributes& attributes) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using T = Compute<S>;
    CudaProblem p(request, attributes.attention, 6);
    p.o = HeadSteps(request.in(3)), p.grad = HeadSteps(request.in(5));
    const auto places = gradient_places(request, attributes.packed);
    return Kernel{[p, places](const KernelArgs& args) {
                    const auto gradient = [&](const GradientPlace& place) {
                      return TokenRows<S>{args.out<S>(place.output) + place.offset, place.row};
                    };
                    const BackwardArgs<S> a{args.in<S>(0),
                                            args.in<S>(1),
                                            args.in<S>(2),
                                            args.in<S>(3),
                                            args.in<T>(4),
                                            args.in<S>(5),
                                            p.masked ? args.inputs[6] : nullptr,
                                            args.control,
                                            args.scratch<T>(),
                                            gradient(places[0]),
                                            gradient(places[1]),
                                            gradient(places[2])};
                    if constexpr (sizeof(S) == 2) {
                      if constexpr (has_wgmma)
                        if (backward_wgmma(args, p, a)) return;
                      if (fits_mma<S>(p)) return backward_mma(args, p, a);
                    }
                    backward_simt(args, p, a);
                  },
                  backward_workspace<S>(p)};
  });
}

}  // namespace ebb
