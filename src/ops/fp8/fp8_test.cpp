#include "ops/fp8/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ebb/threads.h"
#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using Codes = Fp8QuantiseAttributes::Codes;

constexpr Fp8 both[] = {Fp8::e4m3, Fp8::e5m2};

Tensor random_matrix(const Shape& shape, double deviation = 1.0, std::uint64_t seed = 3) {
  return eval(random_normal(shape, 0.0, deviation, bf16), seed);
}

Tensor magnitudes(const Tensor& x) { return apply1(fp8_amax_op(), {x}, NoAttributes{}); }

std::vector<Tensor> quantised(const Tensor& x, Fp8 format, Codes codes) {
  return apply(fp8_quantise_op(), {x, magnitudes(x)}, Fp8QuantiseAttributes{format, codes});
}

Tensor product(const Tensor& a, const Tensor& b, const Fp8ProductAttributes& attributes = {}) {
  return apply1(fp8_product_op(), {a, b}, attributes);
}

std::vector<std::uint8_t> bytes(const Tensor& codes) { return codes.to_vector<std::uint8_t>(); }
float number(const Tensor& scalar) { return scalar.to_vector<float>().front(); }

// Codes of 0.5, 1, 2 and 4. Sums of their products are exact in twelve bits: the tensor cores of a
// Hopper GPU keep fewer bits of a sum than float32 has.
SampleInput codes(const Shape& shape, Fp8 format) {
  const int one = format == Fp8::e4m3 ? 0x38 : 0x3c, doubled = format == Fp8::e4m3 ? 8 : 4;
  SampleInput input{shape, u8, 0.0, 0.0, false, {}};
  for (std::int64_t i = 0; i < shape.elements(); ++i)
    input.values.push_back(one + doubled * static_cast<double>(i * i % 11 % 4 - 1));
  return input;
}
SampleInput step(double value) { return {{}, f32, 0.0, 0.0, false, {value}}; }
SampleInput whole_numbers(const Shape& shape, std::int64_t most = 11, DType dtype = bf16) {
  SampleInput input{shape, dtype, 0.0, 0.0, false, {}};
  for (std::int64_t i = 0; i < shape.elements(); ++i)
    input.values.push_back(static_cast<double>(i * i % 101 * 7 % (2 * most + 1) - most));
  return input;
}

TEST(Fp8, Samples) {
  const auto half = [](const Tensor& x) { return cast(x, bf16); };
  for (const Fp8 format : both) {
    check({"magnitudes and codes", {SampleInput::fixed({32, 48}, -3.0, 3.0)}, [&](const auto& x) {
             const Tensor rounded = half(x[0]);
             std::vector<Tensor> made = quantised(rounded, format, Codes::both);
             made.push_back(magnitudes(rounded));
             return made;
           }});
    for (const Fp8 other : both) {
      if (format == Fp8::e5m2 && other == Fp8::e5m2) continue;
      check({"a product of codes",
             {codes({32, 48}, format), codes({16, 48}, other), step(0.25), step(2.0),
              whole_numbers({16}), whole_numbers({32, 16})},
             [&](const auto& x) {
               const Fp8MatmulAttributes plain{.a = format, .b = other};
               const Fp8MatmulAttributes all{.a = format, .b = other, .bias = true, .added = true};
               return std::vector{
                   apply1(fp8_matmul_op(), {x[0], x[1], x[2], x[3]}, plain),
                   apply1(fp8_matmul_op(), {x[0], x[1], x[2], x[3], x[4], x[5]}, all)};
             }});
    }
  }
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      check(
          {"a product",
           // Exact in 8 bits, and their sums as above.
           {whole_numbers(ta ? Shape{48, 32} : Shape{32, 48}, 7, f64),
            whole_numbers(tb ? Shape{16, 48} : Shape{48, 16}, 7, f64), whole_numbers({16}, 7, f64)},
           [&](const auto& x) {
             return std::vector{apply1(fp8_product_op(), {half(x[0]), half(x[1]), half(x[2])},
                                       Fp8ProductAttributes{.product = {ta, tb}})};
           }});
}

// Rows and columns that do not divide by the tiles of kernels, and rows that lie apart.
TEST(Fp8, CodesAreRoundedQuotients) {
  for (const Fp8 format : both)
    for (const auto& [rows, columns] : {std::pair{16, 16}, {48, 80}, {144, 272}, {256, 128}})
      for (const bool apart : {false, true}) {
        const std::int64_t wide = apart ? columns + 24 : columns;
        const Tensor all = random_matrix({rows, wide}, 0.02);
        const Tensor x = apart ? slice(all, 1, 5, 5 + columns) : all;
        const std::vector<Tensor> made = eval(quantised(x, format, Codes::both));
        const std::vector<double> from = values_of(x);
        double largest = 0.0;
        for (const double value : from) largest = std::max(largest, std::abs(value));
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(largest));
        const float expected_step = std::bit_cast<float>(fp8_step_bits(format, bits));
        ASSERT_EQ(number(made[2]), expected_step);
        const auto plain = bytes(made[0]), turned = bytes(made[1]);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c) {
            const auto at = static_cast<std::size_t>(r * columns + c);
            const float quotient = static_cast<float>(from[at]) / expected_step;
            ASSERT_EQ(plain[at], fp8_encode(format, quotient)) << r << ", " << c;
            ASSERT_EQ(turned[static_cast<std::size_t>(c * rows + r)], plain[at]) << r << ", " << c;
          }
        EXPECT_EQ(bytes(quantised(x, format, Codes::plain)[0]), plain);
        EXPECT_EQ(bytes(quantised(x, format, Codes::transposed)[0]), turned);
      }
}

TEST(Fp8, MagnitudesCoverEveryElement) {
  for (const auto& [rows, columns] : {std::pair{16, 16}, {16, 48}, {80, 272}})
    for (std::int64_t at = 0; at < rows * columns; at += 37) {
      std::vector<float> values(static_cast<std::size_t>(rows * columns), 0.25f);
      values[static_cast<std::size_t>(at)] = -3.0f;
      const Tensor x = cast(Tensor::from(values, {rows, columns}), bf16);
      const std::vector<float> found = magnitudes(x).to_vector<float>();
      EXPECT_EQ(*std::max_element(found.begin(), found.end()), 3.0f) << at;
    }
}

TEST(Fp8, ZerosAndValuesThatAreNotFinite) {
  for (const Fp8 format : both) {
    const std::vector<Tensor> none = eval(quantised(zeros({16, 32}, bf16), format, Codes::plain));
    EXPECT_EQ(bytes(none[0]), std::vector<std::uint8_t>(512, 0));
    EXPECT_EQ(number(none[1]), 1.0f);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(512, 1.0f);
      values[77] = bad;
      const Tensor x = cast(Tensor::from(values, {16, 32}), bf16);
      const std::vector<Tensor> made = eval(quantised(x, format, Codes::plain));
      EXPECT_TRUE(std::isnan(number(made[1])));
      EXPECT_EQ(bytes(made[0]), std::vector<std::uint8_t>(512, fp8_nan));
      if (format == Fp8::e5m2) continue;
      for (const double y : values_of(product(x, ones({32, 16}, bf16)))) EXPECT_TRUE(std::isnan(y));
    }
  }
}

// ‖x - y‖ / ‖y‖
double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i)
    difference += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
  return std::sqrt(difference / size);
}

// Rounding to e4m3 changes a number by 2⁻⁴ at most and by 2.6 % in the mean square, to e5m2 by
// twice that; errors of different elements are independent. So a product of two factors in e4m3 is
// off by √2 · 2.6 % = 3.7 %, one with a gradient by 5.8 %.
TEST(Fp8, ProductsAndGradientsAreNearThoseOfBfloat16) {
  for (const bool tb : {false, true}) {
    const Tensor x = random_matrix({96, 160}, 1.0, 5),
                 w = random_matrix(tb ? Shape{80, 160} : Shape{160, 80}, 0.05, 6),
                 bias = random_matrix({80}, 1.0, 7), g = random_matrix({96, 80}, 1e-6, 8);
    const Tensor rounded = apply1(fp8_product_op(), {x, w, bias},
                                  Fp8ProductAttributes{.product = {false, tb}}),
                 exact = linear(x, w, bias, tb ? WeightLayout::out_in : WeightLayout::in_out);
    const std::vector<Tensor> wrt{x, w, bias};
    const std::vector<Tensor> got = vjp({&rounded, 1}, {&g, 1}, wrt),
                              expected = vjp({&exact, 1}, {&g, 1}, wrt);
    EXPECT_LT(distance(values_of(rounded - expand(bias, {96, 80})),
                       values_of(exact - expand(bias, {96, 80}))),
              0.04);
    EXPECT_GT(distance(values_of(rounded), values_of(exact)), 0.002);  // it did round
    EXPECT_LT(distance(values_of(got[0]), values_of(expected[0])), 0.062);
    EXPECT_LT(distance(values_of(got[1]), values_of(expected[1])), 0.062);
    EXPECT_EQ(values_of(got[2]), values_of(expected[2]));
  }
}

TEST(Fp8, GradientsOfGradientsExist) {
  const Tensor x = random_matrix({32, 48}), w = random_matrix({48, 16});
  const Tensor y = product(x, w), loss = sum(cast(y, f32) * cast(y, f32));
  const std::vector<Tensor> once = grad(loss, {x, w});
  const Tensor again = sum(cast(once[0], f32)) + sum(cast(once[1], f32));
  for (const Tensor& gradient : eval(grad(again, {x, w})))
    for (const double value : values_of(gradient)) EXPECT_TRUE(std::isfinite(value));
}

TEST(Fp8, TheNumberOfThreadsChangesNoBit) {
  const int before = threads();
  const Tensor a = random_matrix({112, 608}, 1.0, 5), b = random_matrix({608, 272}, 1.0, 6);
  set_threads(1);
  const std::vector<double> one = values_of(product(a, b));
  for (const int count : {2, 3, 8}) {
    set_threads(count);
    EXPECT_EQ(values_of(product(a, b)), one) << count;
  }
  set_threads(before);
}

// Sizes at which kernels on a GPU have several tiles, and tiles that are not full.
TEST(Fp8, LargerSizesOnCuda) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  const Tensor all = random_matrix({1040, 1000}, 0.7), a = slice(all, 1, 24, 24 + 592),
               b = random_matrix({592, 784}, 0.02, 4), bias = random_matrix({784}, 1.0, 9);
  std::vector<Tensor> results{apply1(fp8_product_op(), {a, b, bias}, Fp8ProductAttributes{})};
  for (const Tensor& t : quantised(a, Fp8::e5m2, Codes::both)) results.push_back(t);
  for (const Tensor& t : quantised(b, Fp8::e4m3, Codes::transposed)) results.push_back(t);
  results.push_back(magnitudes(a));
  const std::vector<Tensor> here = eval(results),
                            there = eval(OtherDevice(device::cuda(0),
                                                     OtherDevice::Constants::copied)(results));
  // Sums of float32 in another order, with fewer bits on tensor cores, rounded to bfloat16.
  EXPECT_LT(distance(values_of(there[0]), values_of(here[0])), 4e-3);
  for (std::size_t i = 1; i < here.size(); ++i)
    EXPECT_EQ(values_of(there[i]), values_of(here[i])) << i;
}

TEST(Fp8, Errors) {
  const PathScope path("h.0.fc");
  const Tensor x = zeros({32, 48}, bf16);
  expect_error(
      [&] {
        product(zeros({32, 48}), zeros({48, 16}));
      },
      {"[fp8_product]", "h.0.fc", "bfloat16", "float32"});
  expect_error(
      [&] {
        product(x, zeros({48, 20}, bf16));
      },
      {"[fp8_product]", "32 × 48 by 48 × 20", "multiple of 16"});
  expect_error([&] { product(x, zeros({2, 48, 16}, bf16)); }, {"must be matrices"});
  expect_error([&] { product(x, zeros({32, 16}, bf16)); }, {"48 and 32"});
  expect_error(
      [&] {
        product(x, zeros({48, 16}, bf16), {.a = Fp8::e5m2, .b = Fp8::e5m2});
      },
      {"one of the formats must be e4m3"});
  expect_error([&] { magnitudes(zeros({16, 8}, bf16)); }, {"[fp8_amax]", "multiples of 16"});
  expect_error(
      [&] {
        apply(fp8_quantise_op(), {x, zeros({7})}, Fp8QuantiseAttributes{});
      },
      {"[fp8_quantise]", "256"});
  expect_error(
      [&] {
        apply(fp8_matmul_op(), {zeros({32, 48}, u8), zeros({16, 32}, u8), zeros({}), zeros({})},
              Fp8MatmulAttributes{});
      },
      {"[fp8_matmul]", "48 and 32"});
  expect_error(
      [&] {
        apply(fp8_matmul_op(), {zeros({32, 48}, u8), zeros({16, 48}, u8), zeros({}), zeros({})},
              Fp8MatmulAttributes{.bias = true});
      },
      {"[fp8_matmul]", "takes 5 inputs, but 4"});
}

}  // namespace
}  // namespace ebb::test
