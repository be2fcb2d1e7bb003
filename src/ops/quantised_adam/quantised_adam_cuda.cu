// A block of threads processes a block of state at a time, two elements per thread: it decodes both
// moments by the maps, updates them, finds their largest magnitudes and encodes them again. The
// maps are in shared memory, so a block of threads processes many blocks of state.
#include <cfloat>

#include "ops/cuda/group.cuh"
#include "ops/cuda/parameter.cuh"
#include "ops/quantised_adam/maps.h"
#include "ops/quantised_adam/quantised_adam.h"

namespace ebb {
namespace {

using namespace cuda;

// Values and midpoints of both maps. No value reaches the last midpoint.
template <class C, int codes>
struct Maps {
  C mean[codes], square[codes], mean_midpoints[codes], square_midpoints[codes];

  explicit Maps(const MomentMaps& maps) {
    for (int i = 0; i < codes; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      mean[i] = static_cast<C>(maps.mean[at]), square[i] = static_cast<C>(maps.square[at]);
      const bool last = i == codes - 1;
      mean_midpoints[i] =
          last ? std::numeric_limits<C>::infinity() : static_cast<C>(maps.mean_midpoints[at]);
      square_midpoints[i] =
          last ? std::numeric_limits<C>::infinity() : static_cast<C>(maps.square_midpoints[at]);
    }
  }
};

// One call. T is the parameter's type, G the gradient's.
template <class T, class G>
struct State {
  using C = Compute<T>;
  StoredParameter<T> p;
  const G* g;
  const std::uint8_t *mean, *square;
  const float *mean_absmax, *square_absmax;
  const double *rate, *step;
  const C* scale;
  std::uint8_t *mean_out, *square_out;
  float *mean_absmax_out, *square_absmax_out;
  std::int64_t elements;

  State() = default;
  State(const KernelArgs& args, const AdamAttributes& a, std::int64_t count)
      : p(args, a.form),
        g(args.in<G>(QuantisedAdamUpdate::gradient)),
        mean(args.in<std::uint8_t>(QuantisedAdamUpdate::mean_codes)),
        square(args.in<std::uint8_t>(QuantisedAdamUpdate::square_codes)),
        mean_absmax(args.in<float>(QuantisedAdamUpdate::mean_absmax)),
        square_absmax(args.in<float>(QuantisedAdamUpdate::square_absmax)),
        rate(args.in<double>(QuantisedAdamUpdate::rate)),
        step(args.in<double>(QuantisedAdamUpdate::step)),
        scale(args.in<C>(QuantisedAdamUpdate::gradient_scale)),
        mean_out(args.out<std::uint8_t>(QuantisedAdamUpdate::new_mean_codes)),
        square_out(args.out<std::uint8_t>(QuantisedAdamUpdate::new_square_codes)),
        mean_absmax_out(args.out<float>(QuantisedAdamUpdate::new_mean_absmax)),
        square_absmax_out(args.out<float>(QuantisedAdamUpdate::new_square_absmax)),
        elements(count) {}
};

// The number of midpoints that x has reached; 0 for NaN.
template <int codes, class C>
__device__ int encode(const C* midpoints, C x) {
  int low = 0;
#pragma unroll
  for (int half = codes / 2; half > 0; half /= 2)
    if (x >= midpoints[low + half - 1]) low += half;
  return low;
}

template <int bits>
__device__ void read_codes(const std::uint8_t* from, std::int64_t first, int count,
                           int (&codes)[2]) {
  if constexpr (bits == 8) {
    codes[0] = count > 0 ? from[first] : 0, codes[1] = count > 1 ? from[first + 1] : 0;
  } else {
    const int pair = count > 0 ? from[first / 2] : 0;
    codes[0] = pair & 15, codes[1] = pair >> 4;
  }
}

// Only `count` of the two codes exist.
template <int bits>
__device__ void write_codes(std::uint8_t* to, std::int64_t first, int count,
                            const int (&codes)[2]) {
  if constexpr (bits == 8) {
    for (int k = 0; k < count; ++k) to[first + k] = static_cast<std::uint8_t>(codes[k]);
  } else if (count > 0) {
    to[first / 2] = static_cast<std::uint8_t>(codes[0] | (count > 1 ? codes[1] << 4 : 0));
  }
}

// Only `count` of the two elements exist.
template <class T>
__device__ void load_pair(const StoredParameter<T>& p, std::int64_t first, int count,
                          Compute<T> (&x)[2]) {
  if (count == 2) p.template load<2>(first, x);
  if (count != 1) return;
  Compute<T> one[1];
  p.template load<1>(first, one);
  x[0] = one[0];
}
template <class T>
__device__ void store_pair(const StoredParameter<T>& p, std::int64_t first, int count,
                           Compute<T> (&x)[2]) {
  if (count == 2) p.template store<2>(first, x);
  if (count != 1) return;
  Compute<T> one[1] = {x[0]};
  p.template store<1>(first, one);
}

template <int bits>
struct Shape {
  static constexpr int block = bits == 8 ? 256 : 128, threads = block / 2, codes = 1 << bits;
};

// `a` has the values that all calls share.
template <class T, class G, int bits, int most>
__global__ void __launch_bounds__(Shape<bits>::threads)
    quantised_adam_kernel(const __grid_constant__ Calls<State<T, G>, most> calls,
                          const AdamAttributes a,
                          const __grid_constant__ Maps<Compute<T>, 1 << bits> given) {
  using C = Compute<T>;
  constexpr int block = Shape<bits>::block, threads = Shape<bits>::threads,
                codes = Shape<bits>::codes;
  const State<T, G> s = calls.own();
  const std::int64_t blocks = ceil_div(s.elements, block);
  if (blockIdx.x >= blocks) return;
  const C scale = *s.scale;
  if (scale == C(0)) return;
  __shared__ C mean_map[codes], square_map[codes], mean_midpoints[codes], square_midpoints[codes];
  for (int i = static_cast<int>(threadIdx.x); i < codes; i += threads) {
    mean_map[i] = given.mean[i], square_map[i] = given.square[i];
    mean_midpoints[i] = given.mean_midpoints[i], square_midpoints[i] = given.square_midpoints[i];
  }
  const AdamCoefficients<C> k =
      made_once<AdamCoefficients<C>>([&] { return AdamCoefficients<C>(a, *s.rate, *s.step); });
  const Group<threads> group{static_cast<int>(threadIdx.x)};
  for (std::int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const std::int64_t first = b * block + 2 * threadIdx.x;
    const int count = first >= s.elements ? 0 : s.elements - first >= 2 ? 2 : 1;
    int mean_codes[2], square_codes[2];
    read_codes<bits>(s.mean, first, count, mean_codes);
    read_codes<bits>(s.square, first, count, square_codes);
    const C from_mean = static_cast<C>(s.mean_absmax[b]) * k.beta1,
            from_square = static_cast<C>(s.square_absmax[b]) * k.beta2;
    C mean[2] = {}, square[2] = {}, x[2] = {};
    load_pair(s.p, first, count, x);
    // The bit patterns of magnitudes are ordered like the magnitudes, with NaN on top, so that a
    // NaN marks the block.
    int largest_mean = 0, largest_square = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (e >= count) continue;
      const C d = widen(s.g[first + e]) * scale + k.coupled * x[e];
      mean[e] = mean_map[mean_codes[e]] * from_mean + d * k.rest1;
      square[e] = square_map[square_codes[e]] * from_square + d * d * k.rest2;
      const auto magnitude = [](C value) {
        return static_cast<int>(__float_as_uint(static_cast<float>(value)) & 0x7fffffffu);
      };
      largest_mean = Larger{}(largest_mean, magnitude(mean[e]));
      largest_square = Larger{}(largest_square, magnitude(square[e]));
      x[e] = k.kept * x[e] - k.step_size * mean[e] / (square_root(square[e]) * k.root + k.eps);
    }
    store_pair(s.p, first, count, x);
    // After the joins, every thread has read the block's magnitudes.
    float mean_absmax = __uint_as_float(static_cast<unsigned>(group.largest(largest_mean))),
          square_absmax = __uint_as_float(static_cast<unsigned>(group.largest(largest_square)));
    if (mean_absmax < FLT_MIN) mean_absmax = 0.0f;  // all subnormal: counts as zero
    if (square_absmax < FLT_MIN) square_absmax = 0.0f;
    const auto relative = [](C value, float absmax) {
      return absmax == 0.0f ? C(0) : value / static_cast<C>(absmax);
    };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      mean_codes[e] = encode<codes>(mean_midpoints, relative(mean[e], mean_absmax));
      square_codes[e] = encode<codes>(square_midpoints, relative(square[e], square_absmax));
    }
    write_codes<bits>(s.mean_out, first, count, mean_codes);
    write_codes<bits>(s.square_out, first, count, square_codes);
    if (threadIdx.x == 0) {
      s.mean_absmax_out[b] = mean_absmax;
      s.square_absmax_out[b] = square_absmax;
    }
  }
}

template <class T, class G, int bits, int most>
Kernel bind(std::span<const KernelRequest> calls,
            const std::vector<QuantisedAdamAttributes>& attributes) {
  return {[counts = elements_of(calls), attributes,
           maps = Maps<Compute<T>, 1 << bits>(MomentMaps::of(bits))](const KernelArgs& args) {
    Calls<State<T, G>, most> all{};
    for (std::size_t i = 0; i < counts.size(); ++i)
      all.calls[i] = {call_of(args, i, counts.size()), attributes[i].adam, counts[i]};
    const std::int64_t blocks =
        ceil_div(*std::max_element(counts.begin(), counts.end()), Shape<bits>::block);
    launch(
        {args, "quantised_adam", grid_of_calls(std::min<std::int64_t>(blocks, 2112), counts.size()),
         dim3(Shape<bits>::threads)},
        quantised_adam_kernel<T, G, bits, most>, all, attributes[0].adam, maps);
  }};
}

template <int most>
Kernel bind(std::span<const KernelRequest> calls,
            const std::vector<QuantisedAdamAttributes>& attributes) {
  return dispatch_gradient(calls[0], [&](auto parameter, auto gradient) {
    using T = typename decltype(parameter)::type;
    using G = typename decltype(gradient)::type;
    return skippable_on_device(calls, attributes[0].bits == 8
                                          ? bind<T, G, 8, most>(calls, attributes)
                                          : bind<T, G, 4, most>(calls, attributes));
  });
}

}  // namespace

Kernel bind_quantised_adam_cuda(const KernelRequest& request, const QuantisedAdamAttributes& a) {
  return bind<1>({&request, 1}, {a});
}
Kernel bind_quantised_adam_group_cuda(std::span<const KernelRequest> calls,
                                      std::span<const Attributes> attributes) {
  return bind<GroupOp::most_calls>(calls, typed<QuantisedAdamAttributes>(attributes));
}

}  // namespace ebb
