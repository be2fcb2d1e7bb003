#include "ops/cuda/parameter.cuh"
#include "ops/lion/lion.h"

namespace ebb {
namespace {

using namespace cuda;

// One call. T is the parameter's type, G the gradient's, S the state's.
template <class T, class G, class S>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const S* m;
  const double* rate;
  const C* scale;
  S* m_out;
  std::int64_t count;
  bool wide;

  State() = default;
  State(const KernelArgs& args, const LionAttributes& a, std::int64_t elements)
      : p(args, a.form),
        g(args.in<G>(LionUpdate::gradient)),
        m(args.in<S>(LionUpdate::mean)),
        rate(args.in<double>(LionUpdate::rate)),
        scale(args.in<C>(LionUpdate::gradient_scale)),
        m_out(args.out<S>(LionUpdate::new_mean)),
        count(elements),
        wide(p.aligned() && aligned_for_packs(g) && aligned_for_packs(m) &&
             aligned_for_packs(m_out)) {}
};

// `a` has the values that all calls share.
template <class T, class G, class S, int most>
__global__ void __launch_bounds__(item_threads)
    lion_kernel(const __grid_constant__ Calls<State<T, G, S>, most> calls, LionAttributes a) {
  using C = Compute<T>;
  const State<T, G, S> s = calls.own();
  if (!has_groups(s.count, s.wide)) return;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  if (scale == C(0)) return;
  const C kept = C(1) - rate * static_cast<C>(a.weight_decay);
  const C beta1 = static_cast<C>(a.beta1), rest1 = static_cast<C>(1.0 - a.beta1);
  const C beta2 = static_cast<C>(a.beta2), rest2 = static_cast<C>(1.0 - a.beta2);
  for_groups(s.count, s.wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], m[n];
    s.p.template load<n>(i, x);
    load_group<n>(s.g + i, g);
    load_state<n>(s.m + i, m);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const C d = g[k] * scale, toward = m[k] * beta1 + d * rest1;
      // NaN passes through; 0 gives no step.
      const C step = toward > C(0) ? rate : toward < C(0) ? -rate : toward * rate;
      m[k] = m[k] * beta2 + d * rest2;
      x[k] = kept * x[k] - step;
    }
    store_state<n>(s.m_out + i, m);
    s.p.template store<n>(i, x);
  });
}

template <int most>
Kernel bind(std::span<const KernelRequest> calls, const std::vector<LionAttributes>& attributes) {
  return dispatch_update(
      calls[0], calls[0].in(2).dtype(), [&](auto parameter, auto gradient, auto state) {
        using T = typename decltype(parameter)::type;
        using G = typename decltype(gradient)::type;
        using S = typename decltype(state)::type;
        return update_kernel("lion", lion_kernel<T, G, S, most>, calls, attributes);
      });
}

}  // namespace

Kernel bind_lion_cuda(const KernelRequest& request, const LionAttributes& a) {
  return bind<1>({&request, 1}, {a});
}
Kernel bind_lion_group_cuda(std::span<const KernelRequest> calls,
                            std::span<const Attributes> attributes) {
  return bind<GroupOp::most_calls>(calls, typed<LionAttributes>(attributes));
}

}  // namespace ebb
