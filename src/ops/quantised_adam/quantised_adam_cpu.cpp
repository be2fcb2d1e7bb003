#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "core/parallel.h"
#include "ops/dispatch.h"
#include "ops/pointwise/convert.h"
#include "ops/quantised_adam/codec.h"
#include "ops/quantised_adam/maps.h"
#include "ops/quantised_adam/quantised_adam.h"

namespace ebb {
namespace {

using namespace simd;

// A block as the arithmetic sees it: one code a byte, parameter and gradient in float. What the
// tensors have in that form is used where it lies; the rest is in the tile.
template <class Codec>
struct Tile {
  alignas(64) float parameter[Codec::block], gradient[Codec::block];
  alignas(64) std::uint8_t mean_codes[Codec::block], square_codes[Codec::block];
};

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

// 1 / absmax, and 0 for a block that counts as zero; absmax is then made 0.
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
  // Bits of magnitudes order as the magnitudes do, with NaN above all: one NaN marks the block.
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

// Elements [begin, begin + count) of a parameter of type T, count at most a block.
template <class T, class Codec>
void step_tile(const KernelArgs& args, std::int64_t begin, std::int64_t count,
               const AdamCoefficients<float>& k, float scale) {
  constexpr bool as_it_lies = std::is_same_v<T, float>, bytes = Codec::bits == 8;
  const bool whole = count == Codec::block;
  const std::int64_t block = begin / Codec::block, at = begin * Codec::bits / 8;
  const T *p = args.in<T>(0) + begin, *g = args.in<T>(1) + begin;
  const std::uint8_t *mean = args.in<std::uint8_t>(2) + at, *square = args.in<std::uint8_t>(4) + at;
  T* p_out = args.out<T>(0) + begin;
  std::uint8_t *mean_out = args.out<std::uint8_t>(1) + at,
               *square_out = args.out<std::uint8_t>(3) + at;
  float mean_absmax = args.in<float>(3)[block], square_absmax = args.in<float>(5)[block];

  Tile<Codec> tile;
  if (!whole) {
    // Elements beyond the end have no gradient and the smallest codes, so that they are never the
    // largest of the block.
    std::fill_n(tile.parameter, Codec::block, 0.0f);
    std::fill_n(tile.gradient, Codec::block, 0.0f);
    std::fill_n(tile.mean_codes, Codec::block, std::uint8_t{Codec::zero});
    std::fill_n(tile.square_codes, Codec::block, std::uint8_t{0});
  }
  const bool direct = as_it_lies && whole, direct_codes = bytes && whole;
  if (!direct) {
    if constexpr (as_it_lies)
      std::copy_n(p, count, tile.parameter), std::copy_n(g, count, tile.gradient);
    else
      widen(p, tile.parameter, count), widen(g, tile.gradient, count);
  }
  if (!bytes) {
    unpack(mean, tile.mean_codes, count), unpack(square, tile.square_codes, count);
  } else if (!whole) {
    std::copy_n(mean, count, tile.mean_codes), std::copy_n(square, count, tile.square_codes);
  }

  float* stepped = tile.parameter;
  const float *from = tile.parameter, *gradient = tile.gradient;
  if constexpr (as_it_lies)
    if (whole) from = p, gradient = g, stepped = p_out;
  step_block<Codec>(k, scale, from, gradient, stepped, direct_codes ? mean : tile.mean_codes,
                    direct_codes ? square : tile.square_codes,
                    direct_codes ? mean_out : tile.mean_codes,
                    direct_codes ? square_out : tile.square_codes, mean_absmax, square_absmax);

  if (!direct) {
    if constexpr (as_it_lies)
      std::copy_n(tile.parameter, count, p_out);
    else
      narrow(tile.parameter, p_out, count);
  }
  if (!bytes) {
    pack(tile.mean_codes, mean_out, count), pack(tile.square_codes, square_out, count);
  } else if (!whole) {
    std::copy_n(tile.mean_codes, count, mean_out),
        std::copy_n(tile.square_codes, count, square_out);
  }
  args.out<float>(2)[block] = mean_absmax;
  args.out<float>(4)[block] = square_absmax;
}

// The same in double, by the maps themselves.
template <class Codec>
void step_in_double(const KernelArgs& args, std::int64_t begin, std::int64_t count,
                    const AdamCoefficients<double>& k, double scale) {
  static const MomentMaps& maps = MomentMaps::of(Codec::bits);
  const std::int64_t block = begin / Codec::block, at = begin * Codec::bits / 8;
  const double *p = args.in<double>(0) + begin, *g = args.in<double>(1) + begin;
  double* p_out = args.out<double>(0) + begin;
  double mean[Codec::block], square[Codec::block];
  std::uint8_t mean_codes[Codec::block], square_codes[Codec::block];
  const auto read = [&](int input, std::uint8_t* codes) {
    const std::uint8_t* from = args.in<std::uint8_t>(input) + at;
    Codec::bits == 8 ? void(std::copy_n(from, count, codes)) : unpack(from, codes, count);
  };
  read(2, mean_codes), read(4, square_codes);
  const double mean_absmax = static_cast<double>(args.in<float>(3)[block]),
               square_absmax = static_cast<double>(args.in<float>(5)[block]);
  float largest_mean = 0.0f, largest_square = 0.0f;
  const auto grow = [](float& most, double x) {
    const float size = static_cast<float>(std::abs(x));
    if (size > most || size != size) most = size;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const double d = g[i] * scale + k.coupled * p[i];
    mean[i] = static_cast<double>(maps.mean[mean_codes[i]]) * mean_absmax * k.beta1 + d * k.rest1;
    square[i] = static_cast<double>(maps.square[square_codes[i]]) * square_absmax * k.beta2 +
                d * d * k.rest2;
    grow(largest_mean, mean[i]), grow(largest_square, square[i]);
    p_out[i] = k.kept * p[i] - k.step_size * mean[i] / (std::sqrt(square[i]) * k.root + k.eps);
  }
  const auto write = [&](const double* moment, float absmax, const std::vector<double>& midpoints,
                         int codes_output, std::uint8_t* codes) {
    if (absmax < FLT_MIN) absmax = 0.0f;
    const double divisor = absmax == 0.0f ? 1.0 : static_cast<double>(absmax);
    for (std::int64_t i = 0; i < count; ++i) {
      const double x = absmax == 0.0f ? 0.0 : moment[i] / divisor;
      codes[i] = static_cast<std::uint8_t>(std::upper_bound(midpoints.begin(), midpoints.end(), x) -
                                           midpoints.begin());
    }
    std::uint8_t* to = args.out<std::uint8_t>(codes_output) + at;
    Codec::bits == 8 ? void(std::copy_n(codes, count, to)) : pack(codes, to, count);
    args.out<float>(codes_output + 1)[block] = absmax;
  };
  write(mean, largest_mean, maps.mean_midpoints, 1, mean_codes);
  write(square, largest_square, maps.square_midpoints, 3, square_codes);
}

template <class T, class Codec>
void run(const KernelArgs& args, std::int64_t elements, const AdamAttributes& a) {
  using C = Compute<T>;
  const AdamCoefficients<C> k(a, *args.in<double>(6), *args.in<double>(7));
  const C scale = *args.in<C>(8);
  const std::int64_t blocks = (elements + Codec::block - 1) / Codec::block;
  parallel_for(blocks, (1 << 14) / Codec::block, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) {
      const std::int64_t begin = block * Codec::block;
      const std::int64_t count = std::min<std::int64_t>(Codec::block, elements - begin);
      if constexpr (std::is_same_v<T, double>)
        step_in_double<Codec>(args, begin, count, k, scale);
      else
        step_tile<T, Codec>(args, begin, count, k, scale);
    }
  });
}

}  // namespace

Kernel bind_quantised_adam_cpu(const KernelRequest& request, const QuantisedAdamAttributes& a) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    return Kernel{[elements = request.out().shape().elements(), a](const KernelArgs& args) {
      a.bits == 8 ? run<T, EightBits>(args, elements, a.adam)
                  : run<T, FourBits>(args, elements, a.adam);
    }};
  });
}

}  // namespace ebb
