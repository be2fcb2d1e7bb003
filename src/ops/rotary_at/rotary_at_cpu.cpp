#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/rotary_at/rotary_at.h"

namespace ebb {
namespace {

struct Problem {
  std::int64_t batches, heads, tokens, pairs;
  Strides strides;
  double base;

  Problem(const Arg& x, const RotaryAtAttributes& a) : strides(x.strides), base(a.base) {
    batches = x.shape()[0], heads = x.shape()[1], tokens = x.shape()[2], pairs = x.shape()[3] / 2;
  }
};

// One token's cosines and sines, in double until stored, serve all of its heads. A pair is read
// before either half is written, so `out` may be `x`.
template <class T>
void run(const Problem& p, const KernelArgs& args) {
  using C = Compute<T>;
  const std::int32_t* positions = args.in<std::int32_t>(1);
  parallel_for(
      p.batches * p.tokens,
      std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, p.pairs * (p.heads + 16))),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) {
          const std::int64_t b = token / p.tokens, t = token % p.tokens;
          C *cosines = args.scratch<C>() + token * 2 * p.pairs, *sines = cosines + p.pairs;
          const double place = std::max(positions[token], 0);
          for (std::int64_t i = 0; i < p.pairs; ++i) {
            const double angle =
                place * std::exp(static_cast<double>(i) *
                                 (-std::log(p.base) / static_cast<double>(p.pairs)));
            cosines[i] = static_cast<C>(std::cos(angle));
            sines[i] = static_cast<C>(std::sin(angle));
          }
          for (std::int64_t h = 0; h < p.heads; ++h) {
            const T* x = args.in<T>(0) + b * p.strides[0] + h * p.strides[1] + t * p.strides[2];
            T* out = args.out<T>() + ((b * p.heads + h) * p.tokens + t) * 2 * p.pairs;
#pragma GCC ivdep  // out is x or apart from it
            for (std::int64_t i = 0; i < p.pairs; ++i) {
              const C a = static_cast<C>(x[i]), c = static_cast<C>(x[i + p.pairs]);
              out[i] = static_cast<T>(a * cosines[i] - c * sines[i]);
              out[i + p.pairs] = static_cast<T>(c * cosines[i] + a * sines[i]);
            }
          }
        }
      });
}

}  // namespace

Kernel bind_rotary_at_cpu(const KernelRequest& request, const RotaryAtAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Problem p(request.in(0), a);
    return Kernel{[p](const KernelArgs& args) { run<T>(p, args); },
                  p.batches * p.tokens * 2 * p.pairs * Bytes{sizeof(Compute<T>)}};
  });
}

}  // namespace ebb
