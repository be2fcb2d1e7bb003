#include "ops/cuda/update.cuh"
#include "ops/lion/lion.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

using namespace cuda;

// T is the parameter's type, S the state's.
template <class T, class S>
struct State {
  using C = Compute<T>;
  const T *p, *g;
  const S* m;
  const double* rate;
  const C* scale;
  T* p_out;
  S* m_out;
};

template <class T, class S>
__global__ void __launch_bounds__(item_threads)
    lion_kernel(State<T, S> s, LionAttributes a, std::int64_t count, bool wide) {
  using C = Compute<T>;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  const C kept = C(1) - rate * static_cast<C>(a.weight_decay);
  const C beta1 = static_cast<C>(a.beta1), rest1 = static_cast<C>(1.0 - a.beta1);
  const C beta2 = static_cast<C>(a.beta2), rest2 = static_cast<C>(1.0 - a.beta2);
  for_groups(count, wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], m[n];
    load_group<n>(s.p + i, x);
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
    store_group<n>(s.p_out + i, x);
  });
}

}  // namespace

Kernel bind_lion_cuda(const KernelRequest& request, const LionAttributes& a) {
  const std::int64_t count = request.out().shape().elements();
  return dispatch_state(
      request, request.out().dtype(), request.in(2).dtype(), [&](auto parameter, auto state) {
        using T = typename decltype(parameter)::type;
        using S = typename decltype(state)::type;
        using C = Compute<T>;
        return Kernel{[count, a](const KernelArgs& args) {
          const State<T, S> s{args.in<T>(0), args.in<T>(1),  args.in<S>(2), args.in<double>(3),
                              args.in<C>(4), args.out<T>(0), args.out<S>(1)};
          launch({args, "lion", update_grid(count), dim3(item_threads)}, lion_kernel<T, S>, s, a,
                 count,
                 aligned_for_packs(s.p, s.g) && aligned_for_packs(s.m) &&
                     aligned_for_packs(s.p_out) && aligned_for_packs(s.m_out));
        }};
      });
}

}  // namespace ebb
