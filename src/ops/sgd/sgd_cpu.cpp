#include "ops/optimizer_step.h"
#include "ops/parameter_cpu.h"
#include "ops/sgd/sgd.h"

namespace ebb {
namespace {

template <class C>
void run(const KernelArgs& args, const ParameterRuns<C>& runs, const SgdAttributes& a) {
  const C rate = static_cast<C>(*args.in<double>(SgdUpdate::rate)),
          scale = *args.in<C>(SgdUpdate::gradient_scale);
  const C decay = static_cast<C>(a.weight_decay), momentum = static_cast<C>(a.momentum);
  const C bound = static_cast<C>(a.clip_value);
  const auto clip = [bound](C x) { return x < -bound ? -bound : x > bound ? bound : x; };
  const bool moving = a.momentum > 0.0;
  const C* velocity = moving ? args.in<C>(SgdUpdate::velocity) : nullptr;
  C* velocity_out = moving ? args.out<C>(SgdUpdate::new_velocity) : nullptr;
  runs.for_all(args, [&](std::int64_t at, std::int64_t count, const C* p, const C* g, C* p_out) {
    if (!moving) {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
      for (std::int64_t j = 0; j < count; ++j)
        p_out[j] = p[j] - rate * (clip(g[j] * scale) + decay * p[j]);
      return;
    }
    const C *v = velocity + at, from_gradient = a.nesterov ? C(1) : C(0),
            from_velocity = a.nesterov ? momentum : C(1);
    C* v_out = velocity_out + at;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < count; ++j) {
      const C d = clip(g[j] * scale) + decay * p[j];
      const C next = v[j] * momentum + d;
      v_out[j] = next;
      p_out[j] = p[j] - rate * (from_gradient * d + from_velocity * next);
    }
  });
}

}  // namespace

Kernel bind_sgd_cpu(const KernelRequest& request, const SgdAttributes& a) {
  return dispatch_step(request, request.out().dtype(), f32, [&](auto compute, auto) {
    using C = typename decltype(compute)::type;
    const ParameterRuns<C> runs(request, a.form);
    return skippable<C>(request, SgdUpdate::gradient_scale,
                        {[=](const KernelArgs& args) { run<C>(args, runs, a); }});
  });
}

}  // namespace ebb
