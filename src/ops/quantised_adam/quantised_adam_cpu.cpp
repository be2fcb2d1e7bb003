#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "ops/optimizer_step.h"
#include "ops/parameter_cpu.h"
#include "ops/quantised_adam/codec.h"
#include "ops/quantised_adam/maps.h"
#include "ops/quantised_adam/quantised_adam.h"

namespace ebb {
namespace {

using namespace simd;

void unpack(const std::uint8_t* pairs, std::uint8_t* codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count / 2; ++i)
    codes[2 * i] = pairs[i] & 15, codes[2 * i + 1] = static_cast<std::uint8_t>(pairs[i] >> 4);
  if (count % 2 != 0) codes[count - 1] = pairs[count / 2] & 15;
}

void pack(const std::uint8_t* codes, std::uint8_t* pairs, std::int64_t count) {
  for (std::int64_t i = 0; i < count / 2; ++i)
    pairs[i] = static_cast<std::uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  if (count % 2 != 0) pairs[count / 2] = codes[count - 1];
}

template <class Codec>
void read_codes(const std::uint8_t* from, std::uint8_t* codes, std::int64_t count) {
  Codec::bits == 8 ? void(std::copy_n(from, count, codes)) : unpack(from, codes, count);
}
template <class Codec>
void write_codes(const std::uint8_t* codes, std::uint8_t* to, std::int64_t count) {
  Codec::bits == 8 ? void(std::copy_n(codes, count, to)) : pack(codes, to, count);
}

// 1 / absmax. For a block that counts as zero the result is 0 and absmax becomes 0.
float inverse(float& absmax) {
  if (absmax < FLT_MIN) absmax = 0.0f;
  return absmax == 0.0f ? 0.0f : 1.0f / absmax;
}

// Updates one whole block. Outputs may be the inputs themselves.
template <class Codec>
void step_block(const AdamCoefficients<float> k, float scale, const float* p, const float* g,
                float* p_out, const std::uint8_t* mean_codes, const std::uint8_t* square_codes,
                std::uint8_t* mean_out, std::uint8_t* square_out, float& mean_absmax,
                float& square_absmax) {
  alignas(64) float mean[Codec::block], square[Codec::block];
  const float from_mean = mean_absmax * k.beta1, from_square = square_absmax * k.beta2;
  // The bit patterns of magnitudes are ordered like the magnitudes, with NaN on top, so that a NaN
  // marks the block.
  Ints largest_mean = all(0), largest_square = all(0);
  for (int i = 0; i < Codec::block; i += lanes) {
    const Floats x = load(p + i), d = load(g + i) * scale + x * k.coupled;
    const Floats m = Codec::mean(load_bytes(mean_codes + i)) * from_mean + d * k.rest1;
    const Floats v = Codec::square(load_bytes(square_codes + i)) * from_square + d * d * k.rest2;
    store(mean + i, m);
    store(square + i, v);
    largest_mean = max(largest_mean, bits_of(magnitude(m)));
    largest_square = max(largest_square, bits_of(magnitude(v)));
    store(p_out + i, x * k.kept - m * k.step_size / (sqrt(v) * k.root + k.eps));
  }
  mean_absmax = std::bit_cast<float>(largest(largest_mean));
  square_absmax = std::bit_cast<float>(largest(largest_square));
  const float per_mean = inverse(mean_absmax), per_square = inverse(square_absmax);
  for (int i = 0; i < Codec::block; i += lanes) {
    store_bytes(mean_out + i, Codec::encode_mean(load(mean + i) * per_mean));
    store_bytes(square_out + i, Codec::encode_square(load(square + i) * per_square));
  }
}

// Buffers for a block: parameter and gradient in float, one code per byte.
template <class Codec>
struct Tile {
  alignas(64) float parameter[Codec::block], gradient[Codec::block];
  alignas(64) std::uint8_t mean[Codec::block], square[Codec::block];

  // Elements beyond the end of a parameter have no gradient and the smallest codes, so that they
  // are never the largest of the block.
  void clear() {
    std::fill_n(parameter, Codec::block, 0.0f);
    std::fill_n(gradient, Codec::block, 0.0f);
    std::fill_n(mean, Codec::block, std::uint8_t{Codec::zero});
    std::fill_n(square, Codec::block, std::uint8_t{0});
  }
};

// Block number `block` of the parameter, of which `count` elements exist. Complete blocks in the
// right form are used in place.
template <class Codec>
void step(const KernelArgs& args, std::int64_t block, std::int64_t count, const float* p,
          const float* g, float* p_out, const AdamCoefficients<float>& k, float scale,
          const MomentMaps&) {
  const std::int64_t at = block * Codec::block * Codec::bits / 8;
  const std::uint8_t *mean = args.in<std::uint8_t>(QuantisedAdamUpdate::mean_codes) + at,
                     *square = args.in<std::uint8_t>(QuantisedAdamUpdate::square_codes) + at;
  std::uint8_t *mean_out = args.out<std::uint8_t>(QuantisedAdamUpdate::new_mean_codes) + at,
               *square_out = args.out<std::uint8_t>(QuantisedAdamUpdate::new_square_codes) + at;
  float &mean_absmax = args.out<float>(QuantisedAdamUpdate::new_mean_absmax)[block],
        &square_absmax = args.out<float>(QuantisedAdamUpdate::new_square_absmax)[block];
  mean_absmax = args.in<float>(QuantisedAdamUpdate::mean_absmax)[block],
  square_absmax = args.in<float>(QuantisedAdamUpdate::square_absmax)[block];

  Tile<Codec> tile;
  const bool whole = count == Codec::block, bytes = whole && Codec::bits == 8;
  if (!whole) {
    tile.clear();
    std::copy_n(p, count, tile.parameter), std::copy_n(g, count, tile.gradient);
  }
  if (!bytes)
    read_codes<Codec>(mean, tile.mean, count), read_codes<Codec>(square, tile.square, count);
  step_block<Codec>(k, scale, whole ? p : tile.parameter, whole ? g : tile.gradient,
                    whole ? p_out : tile.parameter, bytes ? mean : tile.mean,
                    bytes ? square : tile.square, bytes ? mean_out : tile.mean,
                    bytes ? square_out : tile.square, mean_absmax, square_absmax);
  if (!whole) std::copy_n(tile.parameter, count, p_out);
  if (!bytes)
    write_codes<Codec>(tile.mean, mean_out, count),
        write_codes<Codec>(tile.square, square_out, count);
}

// The same in double, by the maps themselves.
template <class Codec>
void step(const KernelArgs& args, std::int64_t block, std::int64_t count, const double* p,
          const double* g, double* p_out, const AdamCoefficients<double>& k, double scale,
          const MomentMaps& maps) {
  const std::int64_t at = block * Codec::block * Codec::bits / 8;
  double mean[Codec::block], square[Codec::block];
  std::uint8_t codes[Codec::block];
  const auto read = [&](int input, const std::vector<float>& map, double* moment) {
    read_codes<Codec>(args.in<std::uint8_t>(input) + at, codes, count);
    const double absmax = static_cast<double>(args.in<float>(input + 1)[block]);
    for (std::int64_t i = 0; i < count; ++i)
      moment[i] = static_cast<double>(map[codes[i]]) * absmax;
  };
  const auto write = [&](int output, const std::vector<double>& midpoints, const double* moment) {
    float absmax = 0.0f;
    for (std::int64_t i = 0; i < count; ++i)
      if (const float size = static_cast<float>(std::abs(moment[i])); size > absmax || size != size)
        absmax = size;  // nothing is larger than NaN
    if (absmax < FLT_MIN) absmax = 0.0f;
    const double divisor = absmax == 0.0f ? INFINITY : static_cast<double>(absmax);
    for (std::int64_t i = 0; i < count; ++i)
      codes[i] = static_cast<std::uint8_t>(
          std::upper_bound(midpoints.begin(), midpoints.end(), moment[i] / divisor) -
          midpoints.begin());
    write_codes<Codec>(codes, args.out<std::uint8_t>(output) + at, count);
    args.out<float>(output + 1)[block] = absmax;
  };
  read(QuantisedAdamUpdate::mean_codes, maps.mean, mean),
      read(QuantisedAdamUpdate::square_codes, maps.square, square);
  for (std::int64_t i = 0; i < count; ++i) {
    const double d = g[i] * scale + k.coupled * p[i];
    mean[i] = mean[i] * k.beta1 + d * k.rest1;
    square[i] = square[i] * k.beta2 + d * d * k.rest2;
    p_out[i] = k.kept * p[i] - k.step_size * mean[i] / (std::sqrt(square[i]) * k.root + k.eps);
  }
  write(QuantisedAdamUpdate::new_mean_codes, maps.mean_midpoints, mean),
      write(QuantisedAdamUpdate::new_square_codes, maps.square_midpoints, square);
}

template <class C, class Codec>
void run(const KernelArgs& args, const ParameterRuns<C>& runs, const AdamAttributes& a,
         const MomentMaps& maps) {
  static_assert(ParameterRuns<C>::run % Codec::block == 0);  // a run is whole blocks
  const AdamCoefficients<C> k(a, *args.in<double>(QuantisedAdamUpdate::rate),
                              *args.in<double>(QuantisedAdamUpdate::step));
  const C scale = *args.in<C>(QuantisedAdamUpdate::gradient_scale);
  runs.for_all(args, [&](std::int64_t at, std::int64_t size, const C* p, const C* g, C* p_out) {
    for (std::int64_t first = 0; first < size; first += Codec::block) {
      const std::int64_t block = (at + first) / Codec::block;
      const std::int64_t count = std::min<std::int64_t>(Codec::block, size - first);
      step<Codec>(args, block, count, p + first, g + first, p_out + first, k, scale, maps);
    }
  });
}

}  // namespace

Kernel bind_quantised_adam_cpu(const KernelRequest& request, const QuantisedAdamAttributes& a) {
  return dispatch_step(request, request.out().dtype(), f32, [&](auto compute, auto) {
    using C = typename decltype(compute)::type;
    return skippable<C>(request, QuantisedAdamUpdate::gradient_scale,
                        {[runs = ParameterRuns<C>(request, a.adam.form), a,
                          maps = &MomentMaps::of(a.bits)](const KernelArgs& args) {
                          a.bits == 8 ? run<C, EightBits>(args, runs, a.adam, *maps)
                                      : run<C, FourBits>(args, runs, a.adam, *maps);
                        }});
  });
}

}  // namespace ebb
