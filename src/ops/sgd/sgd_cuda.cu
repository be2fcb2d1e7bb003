#include "ops/cuda/parameter.cuh"
#include "ops/sgd/sgd.h"

namespace ebb {
namespace {

using namespace cuda;

// T is the parameter's type, G the gradient's.
template <class T, class G>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const double* rate;
  const C *scale, *v;  // v is null without momentum
  C* v_out;
};

template <class T, class G>
__global__ void __launch_bounds__(item_threads)
    sgd_kernel(State<T, G> s, SgdAttributes a, std::int64_t count, bool wide) {
  using C = Compute<T>;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  if (scale == C(0)) return;
  const C decay = static_cast<C>(a.weight_decay), momentum = static_cast<C>(a.momentum);
  const C bound = static_cast<C>(a.clip_value);
  const C from_gradient = a.nesterov || !s.v ? C(1) : C(0);
  const C from_velocity = !s.v ? C(0) : (a.nesterov ? momentum : C(1));
  for_groups(count, wide, [&]<int n>(Number<n>, std::int64_t i) {
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

}  // namespace

Kernel bind_sgd_cuda(const KernelRequest& request, const SgdAttributes& a) {
  return dispatch_gradient(request, [&](auto parameter, auto gradient) {
    using T = typename decltype(parameter)::type;
    using G = typename decltype(gradient)::type;
    using C = Compute<T>;
    const std::int64_t count = request.out().shape().elements();
    return skippable_on_device(request, {[count, a](const KernelArgs& args) {
                                 const bool moving = a.momentum > 0.0;
                                 const State<T, G> s{{args, a.form},
                                                     args.in<G>(1),
                                                     args.in<double>(2),
                                                     args.in<C>(3),
                                                     moving ? args.in<C>(4) : nullptr,
                                                     moving ? args.out<C>(1) : nullptr};
                                 launch({args, "sgd", update_grid(count), dim3(item_threads)},
                                        sgd_kernel<T, G>, s, a, count,
                                        s.p.aligned() && aligned_for_packs(s.g) &&
                                            aligned_for_packs(s.v) && aligned_for_packs(s.v_out));
                               }});
  });
}

}  // namespace ebb
