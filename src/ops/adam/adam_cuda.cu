#include "ops/adam/adam.h"
#include "ops/cuda/update.cuh"

namespace ebb {
namespace {

using namespace cuda;

template <class T>
struct State {
  using C = Compute<T>;
  const T *p, *g;
  const C *m, *v;
  const double *rate, *step;
  const C* scale;
  T* p_out;
  C *m_out, *v_out;
};

// What all elements share; the powers cost as much as hundreds of elements.
template <class C>
struct Factors {
  C step_size, root, kept, coupled, scale;
};

template <class T>
__global__ void __launch_bounds__(item_threads)
    adam_kernel(State<T> s, AdamAttributes a, std::int64_t count, bool wide) {
  using C = Compute<T>;
  __shared__ Factors<C> shared;
  if (threadIdx.x == 0) {
    const double rate = *s.rate, step = *s.step;
    shared.step_size = static_cast<C>(rate / (1.0 - ::pow(a.beta1, step)));
    shared.root = static_cast<C>(1.0 / square_root(1.0 - ::pow(a.beta2, step)));
    shared.kept = a.decoupled ? C(1) - static_cast<C>(rate) * static_cast<C>(a.weight_decay) : C(1);
    shared.coupled = a.decoupled ? C(0) : static_cast<C>(a.weight_decay);
    shared.scale = *s.scale;
  }
  __syncthreads();
  const Factors<C> f = shared;
  const C beta1 = static_cast<C>(a.beta1), beta2 = static_cast<C>(a.beta2),
          eps = static_cast<C>(a.eps);
  const C rest1 = static_cast<C>(1.0 - a.beta1), rest2 = static_cast<C>(1.0 - a.beta2);
  for_groups(count, wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], m[n], v[n];
    load_group<n>(s.p + i, x);
    load_group<n>(s.g + i, g);
    load_group<n>(s.m + i, m);
    load_group<n>(s.v + i, v);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const C d = g[k] * f.scale + f.coupled * x[k];
      m[k] = m[k] * beta1 + d * rest1;
      v[k] = v[k] * beta2 + d * d * rest2;
      x[k] = f.kept * x[k] - f.step_size * m[k] / (square_root(v[k]) * f.root + eps);
    }
    store_group<n>(s.m_out + i, m);
    store_group<n>(s.v_out + i, v);
    store_group<n>(s.p_out + i, x);
  });
}

}  // namespace

Kernel bind_adam_cuda(const KernelRequest& request, const AdamAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    return Kernel{[count = request.out().shape().elements(), a](const KernelArgs& args) {
      const State<T> s{args.in<T>(0),      args.in<T>(1),      args.in<C>(2), args.in<C>(3),
                       args.in<double>(4), args.in<double>(5), args.in<C>(6), args.out<T>(0),
                       args.out<C>(1),     args.out<C>(2)};
      launch({args, "adam", update_grid(count), dim3(item_threads)}, adam_kernel<T>, s, a, count,
             aligned_for_packs(s.p, s.g) && aligned_for_packs(s.m, s.v) &&
                 aligned_for_packs(s.p_out) && aligned_for_packs(s.m_out, s.v_out));
    }};
  });
}

}  // namespace ebb
