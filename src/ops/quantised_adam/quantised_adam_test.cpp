#include "ops/quantised_adam/quantised_adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ops/quantised_adam/codec.h"
#include "ops/quantised_adam/maps.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

using simd::EightBits, simd::FourBits;
using simd::Floats, simd::Ints, simd::lanes, simd::load_bytes;

// --- Codes against the maps they stand for

template <class Codec>
void check_decoding() {
  const MomentMaps& maps = MomentMaps::of(Codec::bits);
  std::uint8_t codes[256];
  std::iota(std::begin(codes), std::end(codes), std::uint8_t{0});
  for (int first = 0; first < 1 << Codec::bits; first += lanes) {
    const Ints code = load_bytes(codes + first);
    const Floats mean = Codec::mean(code), square = Codec::square(code);
    const Ints mean_again = Codec::encode_mean(mean), square_again = Codec::encode_square(square);
    for (int i = 0; i < lanes && first + i < 1 << Codec::bits; ++i) {
      const std::size_t at = static_cast<std::size_t>(first + i);
      // The low end of a decade is a difference of numbers nine times as large, each rounded.
      EXPECT_NEAR(mean[i], maps.mean[at], 2e-6f * std::abs(maps.mean[at])) << at;
      EXPECT_NEAR(square[i], maps.square[at], 2e-6f * maps.square[at]) << at;
      EXPECT_EQ(mean_again[i], first + i);
      EXPECT_EQ(square_again[i], first + i);
    }
  }
}

// How much farther from x the encoded value is than the nearest value, in units of their distance.
double excess(const std::vector<float>& map, float x, int code) {
  const auto distance = [&](std::size_t i) { return std::abs(double{map[i]} - double{x}); };
  const std::size_t at = static_cast<std::size_t>(code);
  double least = distance(at), gap = INFINITY;
  for (std::size_t i : {at == 0 ? at : at - 1, at + 1 == map.size() ? at : at + 1})
    if (i != at)
      least = std::min(least, distance(i)), gap = std::min(gap, std::abs(double{map[i]} - map[at]));
  return (distance(at) - least) / gap;
}

template <class Codec>
void check_encoding() {
  const MomentMaps& maps = MomentMaps::of(Codec::bits);
  const Philox philox({5, 0}, {0});
  for (std::uint64_t n = 0; n < 200000; ++n) {
    const auto words = philox(n);
    // Magnitudes even on a line, and even in their logarithm down to 1e-9.
    const double u = words[0] * 0x1p-32;
    const float size = static_cast<float>(n % 2 == 0 ? u : std::pow(10.0, -9.0 * u));
    const float x = words[1] % 2 == 0 ? size : -size;
    const Floats xs = simd::all(x), sizes = simd::all(size);
    ASSERT_LT(excess(maps.mean, x, Codec::encode_mean(xs)[0]), 1e-4) << x;
    ASSERT_LT(excess(maps.square, size, Codec::encode_square(sizes)[0]), 1e-4) << size;
  }
  EXPECT_EQ(Codec::encode_mean(simd::all(0.0f))[0], maps.zero);
  EXPECT_EQ(Codec::encode_square(simd::all(0.0f))[0], 0);
}

TEST(QuantisedAdam, CodesAreThoseOfTheMaps) {
  check_decoding<EightBits>();
  check_decoding<FourBits>();
  check_encoding<EightBits>();
  check_encoding<FourBits>();
}

TEST(QuantisedAdam, MapsHaveTheirPublishedShape) {
  for (const auto* map : {&MomentMaps::of(8).mean, &MomentMaps::of(8).square}) {
    EXPECT_EQ(map->size(), 256u);
    EXPECT_TRUE(std::is_sorted(map->begin(), map->end()));
    EXPECT_EQ(map->back(), 1.0f);
  }
  EXPECT_EQ(MomentMaps::of(8).zero, EightBits::zero);
  EXPECT_EQ(MomentMaps::of(4).zero, FourBits::zero);
  EXPECT_EQ(zero_code(8), 127);
  EXPECT_EQ(zero_code(4), 0x77);
  EXPECT_EQ(MomentMaps::of(4).mean.size(), 16u);
  EXPECT_EQ(MomentMaps::of(4).square.front(), 0.0625f);
}

// --- Steps

SampleInput codes(const TensorType& type) { return {type.shape, u8, 0.0, 256.0, false, {}}; }

Sample step(const char* name, Shape shape, QuantisedAdamAttributes attributes) {
  const QuantisedTypes types = quantised_types(shape.elements(), attributes.bits);
  return {name,
          {SampleInput::real(shape), SampleInput::real(shape), codes(types.codes),
           SampleInput::real(types.absmax.shape, 0.5, 1.0), codes(types.codes),
           SampleInput::real(types.absmax.shape, 0.5, 1.0)},
          [attributes](const auto& x) {
            const DType state = x[0].dtype() == f64 ? f64 : f32;
            const QuantisedAdamResult r = quantised_adam_update(
                x[0], x[1], {x[2], cast(x[3], f32)}, {x[4], cast(x[5], f32)}, full({}, 0.05, f64),
                full({}, 3.0, f64), full({}, 0.5, state), attributes);
            return std::vector{r.parameter, r.mean.codes, r.mean.absmax, r.square.codes,
                               r.square.absmax};
          }};
}

TEST(QuantisedAdam, StepsAndTheirDerivatives) {
  const AdamAttributes adamw{.beta2 = 0.99, .eps = 1e-2, .weight_decay = 0.1, .decoupled = true},
      adam{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-2, .weight_decay = 0.1, .decoupled = false};
  for (Sample sample :
       {step("8 bits", {3, 90}, {adamw, 8}), step("8 bits, coupled", {5}, {adam, 8}),
        step("8 bits, whole blocks", {2, 256}, {adamw, 8}), step("4 bits", {3, 67}, {adamw, 4}),
        step("4 bits, odd", {9}, {adam, 4})}) {
    // Largest magnitudes are float32 for any parameter, so differences of them would be rounding
    // errors. Another precision of the parameter may give the neighbouring code: see DtypesAgree.
    sample.inputs[3].differentiable = sample.inputs[5].differentiable = false;
    sample.low_precision = false;
    sample.function = [all = sample.function](const std::vector<Tensor>& x) {
      const std::vector<Tensor> out = all(x);
      return std::vector{out[0], out[1], out[3]};
    };
    check(sample);
  }
}

std::vector<Tensor> inputs_of(const Sample& sample, DType dtype) {
  std::vector<Tensor> x;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i)
    x.push_back(make_input(sample.inputs[i], dtype, 30 + i));
  return x;
}

// Compares every dtype's kernel with float64's: parameters to the dtype's precision, codes to one
// code.
TEST(QuantisedAdam, DtypesAgree) {
  for (int bits : {8, 4})
    for (DType dtype : {f32, f16, bf16}) {
      SCOPED_TRACE(std::string(name(dtype)) + ", bits " + std::to_string(bits));
      const Sample sample = step("dtypes", {7, 211}, {AdamAttributes{.weight_decay = 0.1}, bits});
      std::vector<Tensor> low = inputs_of(sample, dtype), high = low;
      for (std::size_t i : {0, 1}) high[i] = eval(cast(low[i], f64));
      const auto actual = sample.function(low), expected = sample.function(high);
      const double epsilon = dtype == f32 ? 0x1p-20 : dtype == f16 ? 0x1p-10 : 0x1p-7;
      for (std::size_t i : {0, 2, 4}) {
        const auto a = values_of(actual[i]), b = values_of(expected[i]);
        for (std::size_t k = 0; k < a.size(); ++k)
          ASSERT_NEAR(a[k], b[k], (i == 0 ? epsilon : 0x1p-20) * std::max(1.0, std::abs(b[k])))
              << i << ' ' << k;
      }
      for (std::size_t i : {1, 3}) {
        const auto a = actual[i].to_vector<std::uint8_t>(),
                   b = expected[i].to_vector<std::uint8_t>();
        int different = 0;
        for (std::size_t k = 0; k < a.size(); ++k)
          for (int shift = 0; shift < 8; shift += bits) {
            const int mask = (1 << bits) - 1;
            const int one = (a[k] >> shift) & mask, other = (b[k] >> shift) & mask;
            ASSERT_LE(std::abs(one - other), 1);
            different += one != other;
          }
        EXPECT_LE(different, 2) << "of " << a.size();  // values as near to one as to the next
      }
    }
}

TEST(QuantisedAdam, BitsDoNotDependOnThreadsOrRuns) {
  const int before = threads();
  for (int bits : {8, 4})
    for (DType dtype : {f32, bf16}) {
      const Sample sample = step("threads", {301, 211}, {AdamAttributes{}, bits});
      const std::vector<Tensor> x = inputs_of(sample, dtype);
      std::vector<std::vector<double>> results;
      for (int count : {1, 1, 2, 5}) {
        set_threads(count);
        results.push_back({});
        for (const Tensor& t : sample.function(x))
          for (double value : values_of(t)) results.back().push_back(value);
      }
      for (const auto& result : results) EXPECT_EQ(result, results[0]);
    }
  set_threads(before);
}

// Zero and subnormal blocks stay zero, and NaN and infinity stay visible.
TEST(QuantisedAdam, ExtremeBlocks) {
  for (int bits : {8, 4})
    for (DType dtype : {f32, f64}) {
      const std::int64_t block = bits == 8 ? 256 : 128, count = 3 * block;
      const QuantisedTypes types = quantised_types(count, bits);
      std::vector<double> gradient(static_cast<std::size_t>(count), 0.0);
      for (std::int64_t i = block; i < 2 * block; ++i)
        gradient[static_cast<std::size_t>(i)] = 1e-38;
      gradient[static_cast<std::size_t>(2 * block)] = NAN;
      const Tensor zero_mean = full(types.codes.shape, zero_code(bits), u8),
                   zero = zeros(types.codes.shape, u8), absmax = zeros(types.absmax.shape);
      const QuantisedAdamResult r = quantised_adam_update(
          ones({count}, dtype), cast(Tensor::from(gradient, {count}), dtype), {zero_mean, absmax},
          {zero, absmax}, full({}, 0.1, f64), ones({}, f64), ones({}, dtype),
          {AdamAttributes{.weight_decay = 0.0}, bits});
      const auto p = values_of(r.parameter), means = values_of(r.mean.absmax);
      EXPECT_EQ(p[0], 1.0);
      EXPECT_NEAR(p[static_cast<std::size_t>(block)], 1.0, 1e-15);  // far below eps
      EXPECT_EQ(means[0], 0.0);
      EXPECT_EQ(means[1], 0.0);
      EXPECT_TRUE(std::isnan(p[static_cast<std::size_t>(2 * block)]));
      EXPECT_TRUE(std::isnan(means[2]));
    }
}

TEST(QuantisedAdam, UpdatesVariablesInPlace) {
  const std::int64_t count = 1 << 16;
  const QuantisedTypes types = quantised_types(count, 8);
  const auto state = [](const TensorType& type, double value) {
    return Variable(full(type.shape, value, type.dtype), Category::optimizer);
  };
  const Variable p(ones({count})), m = state(types.codes, zero_code(8)),
                                   ma = state(types.absmax, 0), v = state(types.codes, 0),
                                   va = state(types.absmax, 0);
  const QuantisedAdamResult r =
      quantised_adam_update(p, full({count}, 2.0), {m, ma}, {v, va}, full({}, 0.1, f64),
                            ones({}, f64), ones({}), {AdamAttributes{}, 8});
  Program program({.inputs = {},
                   .outputs = {},
                   .updates = {{p, r.parameter},
                               {m, r.mean.codes},
                               {ma, r.mean.absmax},
                               {v, r.square.codes},
                               {va, r.square.absmax}}});
  program.run();
  EXPECT_NEAR(p.to_vector<float>()[999], 0.9f, 1e-6f);
  // The gradient and scalars; no copy of the state, and no moment in floating point.
  EXPECT_LT(program.plan().live_peak, p.type().bytes() + 4_KiB);
}

TEST(QuantisedAdam, Errors) {
  const Tensor p = zeros({300}), s = zeros({}, f64), one = ones({});
  const QuantisedMoment right{zeros({300}, u8), zeros({2})},
      long_absmax{zeros({300}, u8), zeros({3})};
  expect_error([&] { quantised_adam_update(p, p, right, long_absmax, s, s, one, {}); },
               {"[quantised_adam]", "absmax of the mean square", "float32 (2,)"});
  expect_error(
      [&] {
        quantised_adam_update(p, p, right, right, s, s, one, {{}, 4});
      },
      {"[quantised_adam]", "codes of the mean", "uint8 (150,)"});
  expect_error(
      [&] {
        quantised_adam_update(p, p, right, right, s, s, one, {{}, 5});
      },
      {"[quantised_adam]", "8 or 4 bits", "bits=5"});
}

}  // namespace
}  // namespace ebb::test
