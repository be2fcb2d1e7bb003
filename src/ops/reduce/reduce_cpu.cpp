// Reductions of strided tensors on the CPU.
#include "ops/reduce/fold_cpu.h"

namespace ebb {
namespace {

template <template <class> class Reduction>
Kernel bind(const KernelRequest& request, const ReduceAttributes& a) {
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    using Runner = fold::Runner<S, Reduction>;
    const fold::Geometry g(request.in(0), a.axes, threads());
    return Kernel{[g](const KernelArgs& args) {
                    Runner::run_all(g, threads(), args.out<typename Runner::Result>(),
                                    args.scratch<typename Runner::Wide>(),
                                    [&](int, std::int64_t, std::int64_t) {
                                      return fold::InMemory<S>{args.in<S>(0), g.stride};
                                    });
                  },
                  Runner::partial_bytes(g)};
  });
}

}  // namespace

Kernel bind_sum(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Sum>(request, a);
}
Kernel bind_sum_squares(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::SumSquares>(request, a);
}
Kernel bind_max(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Max>(request, a);
}
Kernel bind_min(const KernelRequest& request, const ReduceAttributes& a) {
  return bind<fold::Min>(request, a);
}

}  // namespace ebb
