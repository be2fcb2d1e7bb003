#include "ops/cuda/parameter.cuh"
#include "ops/lion/lion.h"

namespace ebb {
namespace {

using namespace cuda;

// T is the parameter's type, G the gradient's, S the state's.
template <class T, class G, class S>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const S* m;
  const double* rate;
  const C* scale;
  S* m_out;
};

template <class T, class G, class S>
__global__ void __launch_bounds__(item_threads)
    lion_kernel(State<T, G, S> s, LionAttributes a, std::int64_t count, bool wide) {
  using C = Compute<T>;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  if (scale == C(0)) return;
  const C kept = C(1) - rate * static_cast<C>(a.weight_decay);
  const C beta1 = static_cast<C>(a.beta1), rest1 = static_cast<C>(1.0 - a.beta1);
  const C beta2 = static_cast<C>(a.beta2), rest2 = static_cast<C>(1.0 - a.beta2);
  for_groups(count, wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], m[n];
    s.p.template load<n>(i, x);
    load_group<n>(s.g + i, g);
    load_state<n>(s.m + i, m);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const C d = g[k] * scale, toward = m[k] * beta1 + d * rest1;
      // A NaN is no direction and passes through; 0 stands still.
      const C step = toward > C(0) ? rate : toward < C(0) ? -rate : toward * rate;
      m[k] = m[k] * beta2 + d * rest2;
      x[k] = kept * x[k] - step;
    }
    store_state<n>(s.m_out + i, m);
    s.p.template store<n>(i, x);
  });
}

}  // namespace

Kernel bind_lion_cuda(const KernelRequest& request, const LionAttributes& a) {
  const std::int64_t count = request.out().shape().elements();
  return dispatch_update(
      request, request.in(2).dtype(), [&](auto parameter, auto gradient, auto state) {
        using T = typename decltype(parameter)::type;
        using G = typename decltype(gradient)::type;
        using S = typename decltype(state)::type;
        using C = Compute<T>;
        return skippable_on_device(
            request, {[count, a](const KernelArgs& args) {
              const State<T, G, S> s{{args, a.form},     args.in<G>(1), args.in<S>(2),
                                     args.in<double>(3), args.in<C>(4), args.out<S>(1)};
              launch({args, "lion", update_grid(count), dim3(item_threads)}, lion_kernel<T, G, S>,
                     s, a, count,
                     s.p.aligned() && aligned_for_packs(s.g) && aligned_for_packs(s.m) &&
                         aligned_for_packs(s.m_out));
            }});
      });
}

}  // namespace ebb
