#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/sgd/sgd.h"

namespace ebb {
namespace {

template <class T>
void run(const KernelArgs& args, std::int64_t count, const SgdAttributes& a) {
  using C = Compute<T>;
  const T *p = args.in<T>(0), *g = args.in<T>(1);
  T* p_out = args.out<T>(0);
  const C rate = static_cast<C>(*args.in<double>(2)), scale = *args.in<C>(3);
  const C decay = static_cast<C>(a.weight_decay), momentum = static_cast<C>(a.momentum);
  const C bound = static_cast<C>(a.clip_value);
  const auto clip = [bound](C x) { return x < -bound ? -bound : x > bound ? bound : x; };
  const bool moving = a.momentum > 0.0;
  const C* v = moving ? args.in<C>(4) : nullptr;
  C* v_out = moving ? args.out<C>(1) : nullptr;
  parallel_for(count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    if (!moving) {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
      for (std::int64_t i = begin; i < end; ++i) {
        const C x = static_cast<C>(p[i]);
        p_out[i] = static_cast<T>(x - rate * (clip(static_cast<C>(g[i]) * scale) + decay * x));
      }
      return;
    }
    const C from_gradient = a.nesterov ? C(1) : C(0), from_velocity = a.nesterov ? momentum : C(1);
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      const C x = static_cast<C>(p[i]);
      const C d = clip(static_cast<C>(g[i]) * scale) + decay * x;
      const C velocity = v[i] * momentum + d;
      v_out[i] = velocity;
      p_out[i] = static_cast<T>(x - rate * (from_gradient * d + from_velocity * velocity));
    }
  });
}

}  // namespace

Kernel bind_sgd_cpu(const KernelRequest& request, const SgdAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[count = request.out().shape().elements(), a](const KernelArgs& args) {
      run<T>(args, count, a);
    }};
  });
}

}  // namespace ebb
