#include "ops/cuda/update.cuh"
#include "ops/sgd/sgd.h"

namespace ebb {
namespace {

using namespace cuda;

template <class T>
struct State {
  using C = Compute<T>;
  const T *p, *g;
  const double* rate;
  const C *scale, *v;  // v is null without momentum
  T* p_out;
  C* v_out;
};

template <class T>
__global__ void __launch_bounds__(item_threads)
    sgd_kernel(State<T> s, SgdAttributes a, std::int64_t count, bool wide) {
  using C = Compute<T>;
  const C rate = static_cast<C>(*s.rate), scale = *s.scale;
  const C decay = static_cast<C>(a.weight_decay), momentum = static_cast<C>(a.momentum);
  const C bound = static_cast<C>(a.clip_value);
  const C from_gradient = a.nesterov || !s.v ? C(1) : C(0);
  const C from_velocity = !s.v ? C(0) : (a.nesterov ? momentum : C(1));
  for_groups(count, wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], v[n] = {};
    load_group<n>(s.p + i, x);
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
    store_group<n>(s.p_out + i, x);
  });
}

}  // namespace

Kernel bind_sgd_cuda(const KernelRequest& request, const SgdAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    return Kernel{[count = request.out().shape().elements(), a](const KernelArgs& args) {
      const bool moving = a.momentum > 0.0;
      const State<T> s{args.in<T>(0),
                       args.in<T>(1),
                       args.in<double>(2),
                       args.in<C>(3),
                       moving ? args.in<C>(4) : nullptr,
                       args.out<T>(0),
                       moving ? args.out<C>(1) : nullptr};
      launch({args, "sgd", update_grid(count), dim3(item_threads)}, sgd_kernel<T>, s, a, count,
             aligned_for_packs(s.p, s.g) && aligned_for_packs(s.v) && aligned_for_packs(s.p_out) &&
                 aligned_for_packs(s.v_out));
    }};
  });
}

}  // namespace ebb
