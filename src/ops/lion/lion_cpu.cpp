#include "ops/lion/lion.h"
#include "ops/optimizer_step.h"
#include "ops/parameter_cpu.h"

namespace ebb {
namespace {

// C is the type of the computation, S that of the state.
template <class C, class S>
void run(const KernelArgs& args, const ParameterRuns<C>& runs, const LionAttributes& a) {
  const C rate = static_cast<C>(*args.in<double>(LionUpdate::rate)),
          scale = *args.in<C>(LionUpdate::gradient_scale);
  const C kept = C(1) - rate * static_cast<C>(a.weight_decay);
  const C beta1 = static_cast<C>(a.beta1), rest1 = static_cast<C>(1.0 - a.beta1);
  const C beta2 = static_cast<C>(a.beta2), rest2 = static_cast<C>(1.0 - a.beta2);
  runs.for_all(args, [&](std::int64_t at, std::int64_t count, const C* p, const C* g, C* p_out) {
    const S* m = args.in<S>(LionUpdate::mean) + at;
    S* m_out = args.out<S>(LionUpdate::new_mean) + at;
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
    for (std::int64_t j = 0; j < count; ++j) {
      const C d = g[j] * scale, mean = static_cast<C>(m[j]);
      const C toward = mean * beta1 + d * rest1;
      // NaN passes through; 0 gives no step.
      const C step = toward > C(0) ? rate : toward < C(0) ? -rate : toward * rate;
      if constexpr (std::is_same_v<S, C>)
        m_out[j] = mean * beta2 + d * rest2;
      else
        m_out[j] = BFloat16(static_cast<float>(mean * beta2 + d * rest2));
      p_out[j] = kept * p[j] - step;
    }
  });
}

}  // namespace

Kernel bind_lion_cpu(const KernelRequest& request, const LionAttributes& a) {
  return dispatch_step(request, request.out().dtype(), request.in(LionUpdate::mean).dtype(),
                       [&](auto compute, auto state) {
                         using C = typename decltype(compute)::type;
                         using S = typename decltype(state)::type;
                         const ParameterRuns<C> runs(request, a.form);
                         return skippable<C>(
                             request, LionUpdate::gradient_scale,
                             {[=](const KernelArgs& args) { run<C, S>(args, runs, a); }});
                       });
}

}  // namespace ebb
