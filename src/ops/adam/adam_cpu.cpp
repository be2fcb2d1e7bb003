#include "core/parallel.h"
#include "ops/adam/adam.h"
#include "ops/optimizer_step.h"
#include "ops/pointwise/philox_words.h"

namespace ebb {
namespace {

// To bfloat16, up with the probability that makes it right on average: `chance` is uniform in
// [0, 2^16).
BFloat16 round_by_chance(float value, std::uint32_t chance) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return BFloat16(value);  // infinities and NaN
  BFloat16 rounded;
  rounded.bits = static_cast<std::uint16_t>((bits + chance) >> 16);
  return rounded;
}

// T is the parameter's type, S the state's.
template <class T, class S>
struct Step {
  using C = Compute<T>;
  const T *p, *g;
  const S *m, *v;
  T* p_out;
  S *m_out, *v_out;
  C scale;
  AdamCoefficients<C> k;

  Step(const KernelArgs& args, const AdamAttributes& a)
      : p(args.in<T>(0)),
        g(args.in<T>(1)),
        m(args.in<S>(2)),
        v(args.in<S>(3)),
        p_out(args.out<T>(0)),
        m_out(args.out<S>(1)),
        v_out(args.out<S>(2)),
        scale(*args.in<C>(6)),
        k(a, *args.in<double>(4), *args.in<double>(5)) {}

  // Updates elements [begin, end); `keep` stores their moments.
  template <class Keep>
  void operator()(std::int64_t begin, std::int64_t end, const Keep& keep) const {
#pragma GCC ivdep  // outputs may be the inputs themselves, never parts of them
    for (std::int64_t i = begin; i < end; ++i) {
      const C x = static_cast<C>(p[i]);
      const C d = static_cast<C>(g[i]) * scale + k.coupled * x;
      const C mean = static_cast<C>(m[i]) * k.beta1 + d * k.rest1,
              square = static_cast<C>(v[i]) * k.beta2 + d * d * k.rest2;
      keep(i, mean, square);
      p_out[i] =
          static_cast<T>(k.kept * x - k.step_size * mean / (std::sqrt(square) * k.root + k.eps));
    }
  }
};

template <class T, class S>
void run(const KernelArgs& args, std::int64_t count, const AdamAttributes& a) {
  using C = Compute<T>;
  const Step<T, S> step(args, a);
  parallel_for(count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    step(begin, end, [&](std::int64_t i, C mean, C square) {
      if constexpr (std::is_same_v<S, C>)
        step.m_out[i] = mean, step.v_out[i] = square;
      else
        step.m_out[i] = BFloat16(static_cast<float>(mean)),
        step.v_out[i] = BFloat16(static_cast<float>(square));
    });
  });
}

// Element i takes the halves of word i % 4 of Philox counter i / 4.
template <class T>
void run_by_chance(const KernelArgs& args, std::int64_t count, const AdamAttributes& a) {
  using C = Compute<T>;
  const Step<T, BFloat16> step(args, a);
  const Philox philox(args.random, {a.key});
  constexpr std::int64_t run = 4 * philox_counters;
  parallel_for((count + run - 1) / run, (1 << 14) / run,
               [&](std::int64_t first, std::int64_t last) {
                 std::uint32_t words[run];
                 for (std::int64_t block = first; block < last; ++block) {
                   philox_words(philox, static_cast<std::uint64_t>(block * philox_counters), words);
                   const std::int64_t begin = block * run;
                   step(begin, std::min(count, begin + run), [&](std::int64_t i, C mean, C square) {
                     const std::uint32_t word = words[i - begin];
                     step.m_out[i] = round_by_chance(static_cast<float>(mean), word & 0xffffu);
                     step.v_out[i] = round_by_chance(static_cast<float>(square), word >> 16);
                   });
                 }
               });
}

}  // namespace

Kernel bind_adam_cpu(const KernelRequest& request, const AdamAttributes& a) {
  const std::int64_t count = request.out().shape().elements();
  return dispatch_state(
      request, request.out().dtype(), request.in(2).dtype(), [&](auto parameter, auto state) {
        using T = typename decltype(parameter)::type;
        using S = typename decltype(state)::type;
        if (a.stochastic)
          return Kernel{[=](const KernelArgs& args) { run_by_chance<T>(args, count, a); }};
        return Kernel{[=](const KernelArgs& args) { run<T, S>(args, count, a); }};
      });
}

}  // namespace ebb
