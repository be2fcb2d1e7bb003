#include "ops/cuda/parameter.cuh"
#include "ops/sgd/sgd.h"

namespace ebb {
namespace {

using namespace cuda;

// One call. T is the parameter's type, G the gradient's.
template <class T, class G>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const double* rate;
  const C *scale, *v;  // v is null without momentum
  C* v_out;
  std::int64_t count;
  bool wide;

  State() = default;
  State(const KernelArgs& args, const SgdAttributes& a, std::int64_t elements)
      : p(args, a.form),
        g(args.in<G>(SgdUpdate::gradient)),
        rate(args.in<double>(SgdUpdate::rate)),
        scale(args.in<C>(SgdUpdate::gradient_scale)),
        v(a.momentum > 0.0 ? args.in<C>(SgdUpdate::velocity) : nullptr),
        v_out(a.momentum > 0.0 ? args.out<C>(SgdUpdate::new_velocity) : nullptr),
        count(elements),
        wide(p.aligned() && aligned_for_packs(g) && aligned_for_packs(v) &&
             aligned_for_packs(v_out)) {}
};

// `a` has the values that all calls share.
template <class T, class G, int most>
__global__ void __launch_bounds__(item_threads)
    sgd_kernel(const __grid_constant__ Calls<State<T, G>, most> calls, SgdAttributes a) {
  using C = Compute<T>;
  const State<T, G> s = calls.own();
  if (!has_groups(s.count, s.wide)) return;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  if (scale == C(0)) return;
  const C decay = static_cast<C>(a.weight_decay), momentum = static_cast<C>(a.momentum);
  const C bound = static_cast<C>(a.clip_value);
  const C from_gradient = a.nesterov || !s.v ? C(1) : C(0);
  const C from_velocity = !s.v ? C(0) : (a.nesterov ? momentum : C(1));
  for_groups(s.count, s.wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], v[n] = {};
    s.p.template load<n>(i, x);
    load_group<n>(s.g + i, g);
    if (s.v) load_group<n>(s.v + i, v);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const C scaled = g[k] * scale;
      const C d = (scaled < -bound ? -bound : scaled > bound ? bound : scaled) + decay * x[k];
      v[k] = v[k] * momentum + d;
      x[k] -= rate * (from_gradient * d + from_velocity * v[k]);
    }
    if (s.v) store_group<n>(s.v_out + i, v);
    s.p.template store<n>(i, x);
  });
}

template <int most>
Kernel bind(std::span<const KernelRequest> calls, const std::vector<SgdAttributes>& attributes) {
  return dispatch_gradient(calls[0], [&](auto parameter, auto gradient) {
    using T = typename decltype(parameter)::type;
    using G = typename decltype(gradient)::type;
    return update_kernel("sgd", sgd_kernel<T, G, most>, calls, attributes);
  });
}

}  // namespace

Kernel bind_sgd_cuda(const KernelRequest& request, const SgdAttributes& a) {
  return bind<1>({&request, 1}, {a});
}
Kernel bind_sgd_group_cuda(std::span<const KernelRequest> calls,
                           std::span<const Attributes> attributes) {
  return bind<GroupOp::most_calls>(calls, typed<SgdAttributes>(attributes));
}

}  // namespace ebb
