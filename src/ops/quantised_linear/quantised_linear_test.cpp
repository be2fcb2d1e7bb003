#include "ops/quantised_linear/quantised_linear.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/quantised_linear/few_rows_of_codes.h"
#include "ops/quantised_linear/levels.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

const LowBits all_kinds[] = {LowBits::int8, LowBits::int4, LowBits::nf4};

Tensor random_matrix(std::int64_t rows, std::int64_t columns, DType dtype = f32) {
  return eval(random_normal({rows, columns}, 0.0, 0.5, dtype), 3);
}

// A packed matrix of random values, as a constant.
Tensor packed(const Encoding& e) { return eval(quantise(random_matrix(e.rows, e.columns), e)); }

// Products in both orientations: the gradient in x is the other one.
void check_product(const Encoding& e, std::int64_t rows) {
  const Tensor w = packed(e);
  Sample sample{
      fmt::format("{} {}×{} block {} rows {}", name(e.kind), e.rows, e.columns, e.block, rows),
      {SampleInput::real({rows, e.columns})},
      [=](const auto& x) { return std::vector{quantised_linear(x[0], w, e)}; }};
  check(sample);
}

TEST(QuantisedLinear, Samples) {
  for (const LowBits kind : all_kinds) {
    check_product({kind, 32, true, 5, 70}, 3);    // an odd block at the end, few rows
    check_product({kind, 16, false, 7, 33}, 11);  // an odd byte at the end, tiles
  }
  check_product(Encoding::usual(LowBits::nf4, 3, 128), 1);
  check({"three axes and a bias",
         {SampleInput::real({2, 3, 20}), SampleInput::real({4})},
         [w = packed({LowBits::int4, 16, true, 4, 20})](const auto& x) {
           return std::vector{quantised_linear(x[0], w, {LowBits::int4, 16, true, 4, 20}, x[1])};
         }});
  // Values that every kind packs without an error, so that all dtypes agree.
  for (const LowBits kind : {LowBits::int8, LowBits::int4}) {
    const Encoding e{kind, 16, false, 2, 20};
    SampleInput whole = SampleInput::fixed({2, 20}, -1.0, 1.0);
    for (int i = 0; i < 40; ++i) whole.values.push_back(i % 8 == 0 ? 7.0 : i % 7);
    check({"packed and back", {whole}, [=](const auto& x) {
             return std::vector{dequantise(quantise(x[0], e), e, x[0].dtype())};
           }});
  }
}

// Sizes beyond one tile in both axes, against float64.
TEST(QuantisedLinear, TilesAgreeWithFloat64) {
  const Encoding e = Encoding::usual(LowBits::nf4, 530, 1100);
  const std::int64_t rows = FewRowsOfCodes::most_rows(e.kind, f32) + 1;
  const Tensor w = packed(e), x = random_matrix(rows, 1100), g = random_matrix(rows, 530);
  const Tensor wide = dequantise(w, e, f64);
  const auto compare = [](const Tensor& got, const Tensor& expected, double tolerance) {
    const std::vector<double> a = values_of(got), b = values_of(expected);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
  };
  const Tensor y = matmul(cast(x, f64), wide, Transpose::no, Transpose::yes);
  const Tensor dx = matmul(cast(g, f64), wide);
  const auto back = [&](const Tensor& t) {
    return apply1(quantised_linear_op(), {t, w}, QuantisedLinearAttributes{e, true});
  };
  // Sums of about a thousand products of size 0.25: float32 keeps six digits of them.
  compare(quantised_linear(x, w, e), y, 2e-4);
  compare(back(g), dx, 2e-4);
  for (const DType half : {f16, bf16}) {
    const Tensor hx = cast(x, half), hg = cast(g, half);
    const double eps = half == f16 ? 2e-3 : 1.6e-2;  // of a result of up to 32
    compare(quantised_linear(hx, w, e), matmul(cast(hx, f64), wide, Transpose::no, Transpose::yes),
            16 * eps);
    compare(back(hg), matmul(cast(hg, f64), wide), 16 * eps);
  }
}

// In float64 this weight is unpacked in two parts on a GPU, of unequal size in one orientation.
TEST(QuantisedLinear, PartsOnAGpu) {
  const Encoding e = Encoding::usual(LowBits::nf4, 2100, 4096);
  const Tensor w = packed(e);
  check_cuda({.name = "parts",
              .inputs = {SampleInput::real({9, 4096})},
              .function = [=](const auto& x) { return std::vector{quantised_linear(x[0], w, e)}; },
              .low_precision = false});
}

TEST(QuantisedLinear, FewRowsGiveTheSameBitsInEveryBatch) {
  for (const LowBits kind : all_kinds) {
    const Encoding e = Encoding::usual(kind, 37, 300);
    for (const DType dtype : {f32, bf16}) {
      const std::int64_t most = FewRowsOfCodes::most_rows(kind, dtype);
      const Tensor w = packed(e), x = random_matrix(most, 300, dtype);
      for (const std::int64_t rows :
           {std::int64_t{2}, std::int64_t{3}, std::int64_t{4}, std::int64_t{5}, std::int64_t{6},
            std::int64_t{7}, std::int64_t{8}, most - 1, most}) {
        const auto all = values_of(quantised_linear(slice(x, 0, 0, rows), w, e));
        for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
          const auto one = values_of(quantised_linear(slice(x, 0, row, row + 1), w, e));
          EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * 37))
              << name(kind) << " " << name(dtype) << " row " << row << " of " << rows;
        }
      }
    }
  }
}

// Infinite activations, and activations so large that a product with part of a level overflows,
// give the results of float32; other rows keep their bits.
TEST(QuantisedLinear, FewRowsWithInfiniteActivations) {
  constexpr std::int64_t columns = 70, rows = 9;
  for (const LowBits kind : all_kinds) {
    const Encoding e{kind, 16, false, rows, columns};
    const Tensor w = packed(e), plain = random_matrix(3, columns, bf16);
    const std::vector<double> before = values_of(quantised_linear(plain, w, e)),
                              level = values_of(dequantise(w, e, f64));
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double large : {infinity, -infinity, 3e38, 1e36}) {
      std::vector<double> x = values_of(plain);
      constexpr std::size_t at = columns + 5;  // of the row in the middle
      x[at] = large;
      const auto got = values_of(quantised_linear(cast(Tensor::from(x, {3, columns}), bf16), w, e));
      for (std::size_t i = 0; i < rows; ++i) {
        EXPECT_EQ(got[i], before[i]);
        EXPECT_EQ(got[2 * rows + i], before[2 * rows + i]);
        const double factor = level[i * columns + 5], expected = factor * large;
        if (std::isnan(expected)) {  // infinity times zero
          EXPECT_TRUE(std::isnan(got[rows + i])) << name(kind);
        } else if (std::isinf(got[rows + i])) {  // a level counts up to 127 scales
          EXPECT_GT(std::abs(large), 1e37) << name(kind);
          EXPECT_EQ(std::signbit(got[rows + i]), std::signbit(expected)) << name(kind) << large;
        } else if (std::isinf(expected)) {
          EXPECT_EQ(got[rows + i], expected) << name(kind) << " " << large;
        } else if (std::abs(factor) > 1e-3) {  // two roundings to bfloat16, of x and of the result
          EXPECT_NEAR(got[rows + i], expected, 8e-3 * std::abs(expected)) << name(kind) << large;
        }
      }
    }
  }
}

// Rows that end in each part of a register of codes, and rows longer than the scales computed at a
// time, compared with float64.
TEST(QuantisedLinear, FewRowsOfAllLengthsAgreeWithFloat64) {
  for (const LowBits kind : all_kinds)
    for (const std::int64_t columns : {1, 63, 64, 65, 127, 128, 129, 8300})
      for (const std::int64_t block : {16, 128})
        for (const DType dtype : {f32, f16, bf16}) {
          const Encoding e{kind, block, block == 16, 9, columns};
          const Tensor w = packed(e), x = random_matrix(7, columns, dtype);
          const auto expected =
              values_of(matmul(cast(x, f64), dequantise(w, e, f64), Transpose::no, Transpose::yes));
          const auto got = values_of(quantised_linear(x, w, e));
          // Products are 0.25 in size. float32 keeps six digits of their sum, and a half type
          // rounds the result.
          const double size = 0.25 * std::sqrt(static_cast<double>(columns));
          const double half = dtype == f32 ? 0.0 : dtype == f16 ? 5e-4 : 4e-3;
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], expected[i], 1e-5 * (1.0 + size) + half * std::abs(expected[i]))
                << name(kind) << " " << columns << " columns, blocks of " << block << ", "
                << name(dtype) << " " << i;
        }
}

TEST(QuantisedLinear, TheNumberOfThreadsChangesNoBit) {
  const Encoding e = Encoding::usual(LowBits::int4, 600, 1500);
  const int before = threads();
  for (const std::int64_t rows : {3, 120}) {
    const Tensor w = packed(e), x = random_matrix(rows, 1500);
    set_threads(1);
    const auto one = quantised_linear(x, w, e).to_vector<float>();
    set_threads(3);
    EXPECT_EQ(quantised_linear(x, w, e).to_vector<float>(), one);
  }
  set_threads(before);
}

// The largest error of an element is half a level's distance, times the block's scale.
TEST(Quantise, ErrorsAreHalfALevel) {
  for (const LowBits kind : all_kinds) {
    const Encoding e{kind, 64, false, 6, 200};
    const Tensor w = random_matrix(6, 200);
    const auto exact = w.to_vector<float>(),
               got = dequantise(quantise(w, e), e, f32).to_vector<float>();
    // Distances: 1/127, 1/7, and the widest of nf4's, between -1 and -0.696.
    const double half = kind == LowBits::int8 ? 0.5 / 127 : kind == LowBits::int4 ? 0.5 / 7 : 0.152;
    for (std::int64_t row = 0; row < 6; ++row)
      for (std::int64_t at = 0; at < 200; at += 64) {
        const std::int64_t end = std::min<std::int64_t>(at + 64, 200);
        float largest = 0.0f;
        for (std::int64_t i = at; i < end; ++i)
          largest = std::max(largest, std::abs(exact[static_cast<std::size_t>(row * 200 + i)]));
        for (std::int64_t i = at; i < end; ++i) {
          const auto place = static_cast<std::size_t>(row * 200 + i);
          EXPECT_LE(std::abs(exact[place] - got[place]), 1.0001 * half * largest) << name(kind);
        }
      }
  }
}

TEST(Quantise, LevelsOfNf4AreExact) {
  const std::vector<float> levels(nf4_levels.begin(), nf4_levels.end());
  const Encoding e{LowBits::nf4, 16, false, 1, 16};
  EXPECT_EQ(dequantise(quantise(Tensor::from(levels, {1, 16}), e), e, f32).to_vector<float>(),
            levels);
}

// A scale in 8 bits differs by at most 1/254 of the spread of the scales in its group.
TEST(Quantise, ScalesInEightBits) {
  const Encoding exact{LowBits::int4, 16, false, 40, 320}, small{LowBits::int4, 16, true, 40, 320};
  const Tensor w = random_matrix(40, 320);
  const auto a = dequantise(quantise(w, exact), exact, f64).to_vector<double>(),
             b = dequantise(quantise(w, small), small, f64).to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 7 * 0.3 / 254) << i;
  EXPECT_EQ(exact.bytes(), 40 * 160 + 4 * 800);
  EXPECT_EQ(small.bytes(), 40 * 160 + 800 + 4 * (1 + 4));
}

TEST(Quantise, ZerosAndValuesThatAreNotFinite) {
  for (const LowBits kind : all_kinds) {
    const Encoding e{kind, 16, false, 2, 16};
    std::vector<float> values(32, 0.0f);
    values[20] = std::numeric_limits<float>::infinity();
    const auto got =
        dequantise(quantise(Tensor::from(values, {2, 16}), e), e, f32).to_vector<float>();
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(got[i], 0.0f);
    for (std::size_t i = 16; i < 32; ++i) EXPECT_TRUE(std::isnan(got[i]));
  }
}

TEST(QuantisedLinear, EmptySizes) {
  const Encoding none{LowBits::nf4, 64, true, 0, 8}, thin{LowBits::nf4, 64, true, 3, 0};
  const auto size = [](const Encoding& e, std::int64_t rows) {
    return quantised_linear(zeros({rows, e.columns}), quantise(zeros({e.rows, e.columns}), e), e)
        .to_vector<float>();
  };
  EXPECT_TRUE(size(none, 20).empty());
  EXPECT_EQ(size(thin, 20), std::vector<float>(60, 0.0f));
  EXPECT_EQ(size(thin, 2), std::vector<float>(6, 0.0f));
  EXPECT_TRUE(size({LowBits::int8, 64, true, 3, 8}, 0).empty());
}

TEST(QuantisedLinear, Errors) {
  const Encoding e{LowBits::nf4, 64, true, 4, 8};
  const Tensor w = zeros({e.bytes()}, u8);
  expect_error([&] { quantised_linear(zeros({3, 9}), w, e); }, {"[quantised_linear]", "8", "9"});
  expect_error([&] { quantised_linear(zeros({3, 8}, i32), w, e); }, {"floating-point", "int32"});
  expect_error(
      [&] {
        quantised_linear(zeros({3, 8}), zeros({5}, u8), e);
      },
      {"4 × 8 in nf4", to_string(e.packed())});
  expect_error([&] { quantise(zeros({4, 9}), e); }, {"[quantise]", "(4, 8)"});
  expect_error([&] { dequantise(w, e, i64); }, {"[dequantise]", "int64"});
  expect_error(
      [&] {
        quantise(zeros({4, 8}), {LowBits::nf4, 48, true, 4, 8});
      },
      {"power of two", "48"});
  expect_error([] { low_bits_by_name("int3"); }, {"int8, int4, nf4", "int3"});
}

}  // namespace
}  // namespace ebb::test
