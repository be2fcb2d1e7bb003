#include "core/parallel.h"
#include "ops/lion/lion.h"
#include "ops/optimizer_step.h"

namespace ebb {
namespace {

// T is the parameter's type, S the state's.
template <class T, class S>
void run(const KernelArgs& args, std::int64_t count, const LionAttributes& a) {
  using C = Compute<T>;
  const T *p = args.in<T>(0), *g = args.in<T>(1);
  const S* m = args.in<S>(2);
  T* p_out = args.out<T>(0);
  S* m_out = args.out<S>(1);
  const C rate = static_cast<C>(*args.in<double>(3)), scale = *args.in<C>(4);
  const C kept = C(1) - rate * static_cast<C>(a.weight_decay);
  const C beta1 = static_cast<C>(a.beta1), rest1 = static_cast<C>(1.0 - a.beta1);
  const C beta2 = static_cast<C>(a.beta2), rest2 = static_cast<C>(1.0 - a.beta2);
  parallel_for(count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
    for (std::int64_t i = begin; i < end; ++i) {
      const C d = static_cast<C>(g[i]) * scale, mean = static_cast<C>(m[i]);
      const C toward = mean * beta1 + d * rest1;
      // A NaN is no direction and passes through; 0 stands still.
      const C step = toward > C(0) ? rate : toward < C(0) ? -rate : toward * rate;
      if constexpr (std::is_same_v<S, C>)
        m_out[i] = mean * beta2 + d * rest2;
      else
        m_out[i] = BFloat16(static_cast<float>(mean * beta2 + d * rest2));
      p_out[i] = static_cast<T>(kept * static_cast<C>(p[i]) - step);
    }
  });
}

}  // namespace

Kernel bind_lion_cpu(const KernelRequest& request, const LionAttributes& a) {
  const std::int64_t count = request.out().shape().elements();
  return dispatch_state(request, request.out().dtype(), request.in(2).dtype(),
                        [&](auto parameter, auto state) {
                          using T = typename decltype(parameter)::type;
                          using S = typename decltype(state)::type;
                          return Kernel{[=](const KernelArgs& args) { run<T, S>(args, count, a); }};
                        });
}

}  // namespace ebb
