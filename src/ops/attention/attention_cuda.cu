// Selects attention's CUDA kernels.
#include "ops/attention/problem.cuh"

namespace ebb {
namespace {

using namespace attention;

// Calls run with the size that the tensor-core kernels for any device round heads up to, as a
// constant. Returns false where there are none: for float64 and for heads above 256.
template <class S, class Run>
bool with_padded_size(const CudaProblem& p, const Run& run) {
  const int size = std::max(p.size, p.value_size);
  if constexpr (std::is_same_v<S, double>) {
    return false;
  } else {
    const auto fits = [&](auto padded) {
      if (size > decltype(padded)::value) return false;
      run(padded);
      return true;
    };
    if constexpr (std::is_same_v<S, float>)
      if (fits(std::integral_constant<int, 32>{}) ||
          (size > 64 && fits(std::integral_constant<int, 96>{})))
        return true;
    return fits(std::integral_constant<int, 64>{}) || fits(std::integral_constant<int, 128>{}) ||
           fits(std::integral_constant<int, 256>{});
  }
}

#ifdef EBB_HAS_WGMMA
constexpr bool has_wgmma = true;
#else
constexpr bool has_wgmma = false;
#endif

// Workspace of backward, before the bounds of first keys: at most two numbers per query, rounded up
// to whole tiles.
template <class S>
Bytes statistics_bytes(const CudaProblem& p) {
  const std::int64_t heads = static_cast<std::int64_t>(p.batches) * p.heads;
  const std::int64_t numbers =
      sizeof(S) == 2 && has_wgmma ? heads * cuda::ceil_div(p.queries, 64) * 128 : heads * p.queries;
  return round_up(numbers * Bytes{static_cast<std::int64_t>(sizeof(Compute<S>))},
                  Bytes{static_cast<std::int64_t>(sizeof(int2))});
}

}  // namespace

Kernel bind_attention_cuda(const KernelRequest& request, const AttentionAttributes& attributes) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    const CudaProblem p(request, attributes, 3);
    return Kernel{[p](const KernelArgs& args) {
                    const ForwardArgs<S> a{args.in<S>(0),
                                           args.in<S>(1),
                                           args.in<S>(2),
                                           p.masked ? args.inputs[3] : nullptr,
                                           args.scratch<int2>(),
                                           args.control,
                                           {args.out<S>(0), std::int64_t{p.heads} * p.value_size},
                                           args.out<Compute<S>>(1)};
                    if constexpr (sizeof(S) == 2 && has_wgmma)
                      if (forward_wgmma(args, p, a)) return;
                    if (!with_padded_size<S>(p, [&](auto padded) {
                          forward_mma<S, decltype(padded)::value>(args, p, a);
                        }))
                      forward_simt(args, p, a);
                  },
                  p.bounds_bytes()};
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
    const Bytes statistics = statistics_bytes<S>(p);
    return Kernel{[p, places, statistics](const KernelArgs& args) {
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
                                            args.scratch<int2>(statistics),
                                            args.control,
                                            args.scratch<T>(),
                                            gradient(places[0]),
                                            gradient(places[1]),
                                            gradient(places[2])};
                    if constexpr (sizeof(S) == 2 && has_wgmma)
                      if (backward_wgmma(args, p, a)) return;
                    if (!with_padded_size<S>(p, [&](auto padded) {
                          backward_mma<S, decltype(padded)::value>(args, p, a);
                        }))
                      backward_simt(args, p, a);
                  },
                  statistics + p.bounds_bytes()};
  });
}

}  // namespace ebb
