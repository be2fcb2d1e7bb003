#include "ops/attention/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "support/op_check.h"
#include "support/other_device.h"

namespace ebb::test {
namespace {

using attention::DropoutMask;

std::vector<double> drawn(const Shape& scores, double probability, std::uint64_t key = 9,
                          std::uint64_t seed = 5) {
  return values_of(
      eval(attention_dropout(scores, probability, f64, device::cpu, RandomKey{key}), seed));
}

// Score by score: a number of 16 bits from the words of the score's group.
TEST(AttentionDropout, IsWhatItSays) {
  const Philox philox({.seed = 5, .step = 0}, RandomKey{9});
  const std::int64_t heads = 6, queries = 37, keys = 21;
  for (double p : {0.01, 0.1, 0.25, 0.5, 0.9}) {
    const auto limit = static_cast<std::uint32_t>(std::lround(p * 65536));
    const auto values = drawn({2, 3, queries, keys}, p);
    std::size_t at = 0;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t i = 0; i < queries; ++i)
        for (std::int64_t j = 0; j < keys; ++j) {
          // Blocks of a head: three times two.
          const std::int64_t group = ((head * 3 + i / 16) * 2 + j / 16) * 8 + i % 8;
          const std::int64_t bit = i % 16 / 8 * 16 + j % 16;
          std::uint32_t number = 0;
          for (std::int64_t k = 0; k < 16; ++k) {
            const auto words = philox.by_rounds<7>(static_cast<std::uint64_t>(4 * group + k / 4));
            number |= (words[static_cast<std::size_t>(k % 4)] >> bit & 1u) << k;
          }
          const double expected = number >= limit ? 65536.0 / (65536.0 - limit) : 0.0;
          ASSERT_EQ(values[at++], expected) << p << ": " << head << ", " << i << ", " << j;
        }
  }
}

TEST(AttentionDropout, IsTheSameOnCuda) {
  if (!cuda_present()) GTEST_SKIP() << "no CUDA device";
  for (DType dtype : {f64, f32, f16, bf16}) {
    const Tensor mask = attention_dropout({2, 3, 70, 45}, 0.3, dtype, device::cpu, RandomKey{4});
    const Tensor there = OtherDevice(device::cuda(0), OtherDevice::Constants::copied)(mask);
    EXPECT_EQ(values_of(eval(there, 3)), values_of(eval(mask, 3))) << name(dtype);
  }
}

// With no scores at all every weight is 1 / S, and with a unit matrix of values they are the
// result: the mask as attention's kernels draw it, of every dtype and on every device.
TEST(AttentionDropout, IsWhatAttentionDraws) {
  const double p = 0.2;
  for (std::int64_t keys : {64, 45}) {
    const std::int64_t queries = 150;
    const Shape scores{2, 2, queries, keys};
    const auto mask = values_of(attention_dropout(scores, p, f64, device::cpu, RandomKey{6}));
    std::vector<double> unit(static_cast<std::size_t>(keys * keys), 0.0);
    for (std::int64_t j = 0; j < keys; ++j) unit[static_cast<std::size_t>(j * keys + j)] = 1.0;
    const Tensor one = Tensor::from(unit, {1, 1, keys, keys});
    for (DType dtype : {f64, f32, f16, bf16})
      for (std::int64_t size : {64, 7, 120}) {
        const Tensor q = zeros({2, 2, queries, size}, dtype), k = zeros({2, 2, keys, size}, dtype),
                     v = eval(cast(expand(one, {2, 2, keys, keys}), dtype));
        const Tensor o = scaled_dot_product_attention(q, k, v, {.dropout = p, .key = RandomKey{6}});
        const auto agree = [&](const Tensor& result) {
          const auto values = values_of(result);
          ASSERT_EQ(values.size(), mask.size());
          for (std::size_t i = 0; i < mask.size(); ++i) {
            // Rounded to a dtype's digits: kept or not cannot be mistaken.
            ASSERT_NEAR(values[i] * static_cast<double>(keys), mask[i], 0.05)
                << name(dtype) << ", head size " << size << ", score " << i;
          }
        };
        agree(o);
        if (cuda_present()) agree(OtherDevice(device::cuda(0), OtherDevice::Constants::copied)(o));
      }
  }
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Five standard deviations: one in two million draws is that far off, and seeds are fixed.
TEST(AttentionDropout, KeepsMeans) {
  const std::int64_t n = 8 * 160 * 1040;
  for (double p : {0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99}) {
    const auto values = drawn({2, 4, 160, 1040}, p);
    EXPECT_NEAR(mean(values), 1.0, 5.0 * std::sqrt(p / (1.0 - p) / static_cast<double>(n))) << p;
    const auto dropped = static_cast<double>(std::count(values.begin(), values.end(), 0.0));
    const double share = 1.0 - DropoutMask(p, 1, 1).share;  // p in units of 2⁻¹⁶
    EXPECT_NEAR(share, p, 0x1p-17);
    EXPECT_NEAR(dropped / static_cast<double>(n), share,
                5.0 * std::sqrt(p * (1.0 - p) / static_cast<double>(n)))
        << p;
  }
}

TEST(AttentionDropout, ExtremeProbabilitiesStayFinite) {
  for (double value : drawn({1, 1, 40, 40}, 1e-6)) EXPECT_EQ(value, 1.0);
  for (double value : drawn({1, 1, 40, 40}, 0.9999999))
    EXPECT_TRUE(value == 0.0 || value == 65536.0) << value;
}

// Whether scores some way apart are kept by chance of one another: in a group and its words,
// between groups, blocks and heads. And the same score in other steps and under other keys.
TEST(AttentionDropout, IsIndependent) {
  const std::int64_t heads = 6, queries = 256, keys = 256;
  for (double p : {0.01, 0.1, 0.5, 0.9}) {
    const auto x = drawn({2, 3, queries, keys}, p);
    const double share = 1.0 - DropoutMask(p, 1, 1).share;
    // Both are kept or dropped less often than chance has it, in standard deviations.
    const auto correlation = [&](const std::vector<double>& y, std::int64_t h, std::int64_t di,
                                 std::int64_t dj) {
      double sum = 0.0, count = 0.0;
      for (std::int64_t head = 0; head + h < heads; ++head)
        for (std::int64_t i = 0; i + di < queries; ++i)
          for (std::int64_t j = 0; j + dj < keys; ++j, ++count) {
            const auto kept = [&](const std::vector<double>& z, std::int64_t at) {
              return (z[static_cast<std::size_t>(at)] != 0.0 ? 1.0 : 0.0) - (1.0 - share);
            };
            sum += kept(x, (head * queries + i) * keys + j) *
                   kept(y, ((head + h) * queries + i + di) * keys + j + dj);
          }
      return sum / (share * (1.0 - share) * std::sqrt(count));
    };
    for (const auto& [h, i, j] : std::vector<std::array<std::int64_t, 3>>{{0, 0, 1},
                                                                          {0, 0, 2},
                                                                          {0, 0, 8},
                                                                          {0, 0, 16},
                                                                          {0, 0, 64},
                                                                          {0, 1, 0},
                                                                          {0, 1, 1},
                                                                          {0, 8, 0},
                                                                          {0, 8, 1},
                                                                          {0, 16, 0},
                                                                          {0, 16, 16},
                                                                          {1, 0, 0},
                                                                          {3, 0, 0}})
      EXPECT_LT(std::abs(correlation(x, h, i, j)), 5.0) << p << ": " << h << ", " << i << ", " << j;
    EXPECT_LT(std::abs(correlation(drawn({2, 3, queries, keys}, p, 10), 0, 0, 0)), 5.0) << p;
    EXPECT_LT(std::abs(correlation(drawn({2, 3, queries, keys}, p, 9, 6), 0, 0, 0)), 5.0) << p;

    // How many of a group's 32 are dropped: its variance, and that of whole rows.
    for (std::int64_t run : {32, 256}) {
      double squares = 0.0;
      const std::int64_t runs = heads * queries * keys / run;
      for (std::int64_t r = 0; r < runs; ++r) {
        double dropped = 0.0;
        for (std::int64_t n = 0; n < run; ++n)
          dropped += x[static_cast<std::size_t>(r * run + n)] == 0.0;
        squares += std::pow(dropped - share * static_cast<double>(run), 2);
      }
      const double variance = static_cast<double>(run) * share * (1.0 - share);
      const double fourth = 2.0 + 1.0 / variance;  // of a binomial's squares, relative
      EXPECT_NEAR(squares / static_cast<double>(runs) / variance, 1.0,
                  5.0 * std::sqrt(fourth / static_cast<double>(runs)))
          << p << ", runs of " << run;
    }
  }
}

}  // namespace
}  // namespace ebb::test
