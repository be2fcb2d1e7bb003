#include "ops/adam/adam.h"
#include "ops/optimizer_step.h"
#include "ops/parameter_cpu.h"

namespace ebb {
namespace {

// C is the type of the computation, S that of the state.
template <class C, class S>
struct Step {
  const S *m, *v;
  S *m_out, *v_out;
  C scale;
  AdamCoefficients<C> k;

  Step(const KernelArgs& args, const AdamAttributes& a)
      : m(args.in<S>(AdamUpdate::mean)),
        v(args.in<S>(AdamUpdate::square)),
        m_out(args.out<S>(AdamUpdate::new_mean)),
        v_out(args.out<S>(AdamUpdate::new_square)),
        scale(*args.in<C>(AdamUpdate::gradient_scale)),
        k(a, *args.in<double>(AdamUpdate::rate), *args.in<double>(AdamUpdate::step)) {}

  // Updates `count` elements from `at` on; `keep` stores their moments.
  template <class Keep>
  void operator()(std::int64_t at, std::int64_t count, const C* p, const C* g, C* p_out,
                  const Keep& keep) const {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
    for (std::int64_t j = 0; j < count; ++j) {
      const C x = p[j];
      const C d = g[j] * scale + k.coupled * x;
      const C mean = static_cast<C>(m[at + j]) * k.beta1 + d * k.rest1,
              square = static_cast<C>(v[at + j]) * k.beta2 + d * d * k.rest2;
      keep(j, mean, square);
      p_out[j] = k.kept * x - k.step_size * mean / (std::sqrt(square) * k.root + k.eps);
    }
  }
};

template <class C, class S>
void run(const KernelArgs& args, const ParameterRuns<C>& runs, const AdamAttributes& a) {
  const Step<C, S> step(args, a);
  runs.for_all(args, [&](std::int64_t at, std::int64_t count, const C* p, const C* g, C* p_out) {
    S *m_out = step.m_out + at, *v_out = step.v_out + at;
    step(at, count, p, g, p_out, [=](std::int64_t j, C mean, C square) {
      if constexpr (std::is_same_v<S, C>)
        m_out[j] = mean, v_out[j] = square;
      else
        m_out[j] = BFloat16(static_cast<float>(mean)),
        v_out[j] = BFloat16(static_cast<float>(square));
    });
  });
}

// Element i takes the halves of word i % 4 of Philox counter i / 4.
template <class C>
void run_by_chance(const KernelArgs& args, const ParameterRuns<C>& runs, const AdamAttributes& a) {
  const Step<C, BFloat16> step(args, a);
  const Philox philox(args.random, {a.key});
  constexpr std::int64_t some = 4 * philox_counters;  // elements processed together
  runs.for_all(args, [&](std::int64_t at, std::int64_t count, const C* p, const C* g, C* p_out) {
    std::uint32_t words[some];
    for (std::int64_t first = 0; first < count; first += some) {
      const std::int64_t begin = at + first;
      philox_words(philox, static_cast<std::uint64_t>(begin / 4), words);
      BFloat16 *m_out = step.m_out + begin, *v_out = step.v_out + begin;
      step(begin, std::min(some, count - first), p + first, g + first, p_out + first,
           [&](std::int64_t j, C mean, C square) {
             m_out[j] = round_by_chance(static_cast<float>(mean), words[j] & 0xffffu);
             v_out[j] = round_by_chance(static_cast<float>(square), words[j] >> 16);
           });
    }
  });
}

}  // namespace

Kernel bind_adam_cpu(const KernelRequest& request, const AdamAttributes& a) {
  return dispatch_step(
      request, request.out().dtype(), request.in(AdamUpdate::mean).dtype(),
      [&](auto compute, auto state) {
        using C = typename decltype(compute)::type;
        using S = typename decltype(state)::type;
        const ParameterRuns<C> runs(request, a.form);
        if (a.stochastic)
          return skippable<C>(request, AdamUpdate::gradient_scale,
                              {[=](const KernelArgs& args) { run_by_chance<C>(args, runs, a); }});
        return skippable<C>(request, AdamUpdate::gradient_scale,
                            {[=](const KernelArgs& args) { run<C, S>(args, runs, a); }});
      });
}

}  // namespace ebb
