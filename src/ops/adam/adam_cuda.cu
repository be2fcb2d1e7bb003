#include "ops/adam/adam.h"
#include "ops/cuda/parameter.cuh"

namespace ebb {
namespace {

using namespace cuda;

// One call. T is the parameter's type, G the gradient's, S the state's.
template <class T, class G, class S>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const S *m, *v;
  const double *rate, *step;
  const C* scale;
  S *m_out, *v_out;
  std::uint64_t key;  // of stochastic rounding
  std::int64_t count;
  bool wide;

  State() = default;
  State(const KernelArgs& args, const AdamAttributes& a, std::int64_t elements)
      : p(args, a.form),
        g(args.in<G>(AdamUpdate::gradient)),
        m(args.in<S>(AdamUpdate::mean)),
        v(args.in<S>(AdamUpdate::square)),
        rate(args.in<double>(AdamUpdate::rate)),
        step(args.in<double>(AdamUpdate::step)),
        scale(args.in<C>(AdamUpdate::gradient_scale)),
        m_out(args.out<S>(AdamUpdate::new_mean)),
        v_out(args.out<S>(AdamUpdate::new_square)),
        key(a.key),
        count(elements),
        wide(p.aligned() && aligned_for_packs(g) && aligned_for_packs(m, v) &&
             aligned_for_packs(m_out, v_out)) {}
};

// Element i takes the halves of word i % 4 of Philox counter i / 4.
template <int n, class C>
__device__ void store_by_chance(const Philox& philox, std::int64_t i, BFloat16* m, BFloat16* v,
                                const C (&mean)[n], const C (&square)[n]) {
  const auto words = philox(static_cast<std::uint64_t>(i / 4));
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const int at = n == 1 ? static_cast<int>(i % 4) : k;
    const std::uint32_t word = at == 0   ? words[0]
                               : at == 1 ? words[1]
                               : at == 2 ? words[2]
                                         : words[3];
    m[k] = round_by_chance(static_cast<float>(mean[k]), word & 0xffffu);
    v[k] = round_by_chance(static_cast<float>(square[k]), word >> 16);
  }
}

// `a` has the values that all calls share.
template <class T, class G, class S, int most>
__global__ void __launch_bounds__(item_threads)
    adam_kernel(const __grid_constant__ Calls<State<T, G, S>, most> calls, AdamAttributes a) {
  using C = Compute<T>;
  const State<T, G, S> s = calls.own();
  if (!has_groups(s.count, s.wide)) return;
  const C scale = *s.scale;
  if (scale == C(0)) return;
  const AdamCoefficients<C> f =
      made_once<AdamCoefficients<C>>([&] { return AdamCoefficients<C>(a, *s.rate, *s.step); });
  for_groups(s.count, s.wide, [&]<int n>(Number<n>, std::int64_t i) {
    C x[n], g[n], m[n], v[n];
    s.p.template load<n>(i, x);
    load_group<n>(s.g + i, g);
    load_state<n>(s.m + i, m);
    load_state<n>(s.v + i, v);
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const C d = g[k] * scale + f.coupled * x[k];
      m[k] = m[k] * f.beta1 + d * f.rest1;
      v[k] = v[k] * f.beta2 + d * d * f.rest2;
      x[k] = f.kept * x[k] - f.step_size * m[k] / (square_root(v[k]) * f.root + f.eps);
    }
    bool kept = false;
    if constexpr (std::is_same_v<S, BFloat16>)
      if (a.stochastic) {
        store_by_chance(Philox(*s.p.random, RandomKey{s.key}), i, s.m_out + i, s.v_out + i, m, v);
        kept = true;
      }
    if (!kept) {
      store_state<n>(s.m_out + i, m);
      store_state<n>(s.v_out + i, v);
    }
    s.p.template store<n>(i, x);
  });
}

template <int most>
Kernel bind(std::span<const KernelRequest> calls, const std::vector<AdamAttributes>& attributes) {
  return dispatch_update(
      calls[0], calls[0].in(2).dtype(), [&](auto parameter, auto gradient, auto state) {
        using T = typename decltype(parameter)::type;
        using G = typename decltype(gradient)::type;
        using S = typename decltype(state)::type;
        return update_kernel("adam", adam_kernel<T, G, S, most>, calls, attributes);
      });
}

}  // namespace

Kernel bind_adam_cuda(const KernelRequest& request, const AdamAttributes& a) {
  return bind<1>({&request, 1}, {a});
}
Kernel bind_adam_group_cuda(std::span<const KernelRequest> calls,
                            std::span<const Attributes> attributes) {
  return bind<GroupOp::most_calls>(calls, typed<AdamAttributes>(attributes));
}

}  // namespace ebb
