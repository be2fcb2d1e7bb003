#include <cmath>

#include "core/parallel.h"
#include "ops/adam/adam.h"
#include "ops/dispatch.h"

namespace ebb {
namespace {

template <class T>
void run(const KernelArgs& args, std::int64_t count, const AdamAttributes& a) {
  using C = Compute<T>;
  const T *p = args.in<T>(0), *g = args.in<T>(1);
  const C *m = args.in<C>(2), *v = args.in<C>(3);
  T* p_out = args.out<T>(0);
  C *m_out = args.out<C>(1), *v_out = args.out<C>(2);
  const double rate = *args.in<double>(4), step = *args.in<double>(5);
  const C scale = *args.in<C>(6);
  const C beta1 = static_cast<C>(a.beta1), beta2 = static_cast<C>(a.beta2),
          eps = static_cast<C>(a.eps);
  const C rest1 = static_cast<C>(1.0 - a.beta1), rest2 = static_cast<C>(1.0 - a.beta2);
  const C step_size = static_cast<C>(rate / (1.0 - std::pow(a.beta1, step)));
  const C root = static_cast<C>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, step)));
  const C kept = a.decoupled ? C(1) - static_cast<C>(rate) * static_cast<C>(a.weight_decay) : C(1);
  const C coupled = a.decoupled ? C(0) : static_cast<C>(a.weight_decay);
  parallel_for(count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
    for (std::int64_t i = begin; i < end; ++i) {
      const C x = static_cast<C>(p[i]);
      const C d = static_cast<C>(g[i]) * scale + coupled * x;
      const C mean = m[i] * beta1 + d * rest1, square = v[i] * beta2 + d * d * rest2;
      m_out[i] = mean;
      v_out[i] = square;
      p_out[i] = static_cast<T>(kept * x - step_size * mean / (std::sqrt(square) * root + eps));
    }
  });
}

}  // namespace

Kernel bind_adam_cpu(const KernelRequest& request, const AdamAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[count = request.out().shape().elements(), a](const KernelArgs& args) {
      run<T>(args, count, a);
    }};
  });
}

}  // namespace ebb
