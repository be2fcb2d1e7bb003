// Codes of 8-bit floating point against tables that were made by a program of their own from the
// OCP specification, in exact fractions.
#include "ops/fp8/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace ebb::test {
namespace {

// Of the codes from 0 up to the largest finite number.
const std::vector<double> e4m3_numbers{
    0,        0x1p-9,   0x1p-8,   0x1.8p-8, 0x1p-7,   0x1.4p-7, 0x1.8p-7, 0x1.cp-7, 0x1p-6,
    0x1.2p-6, 0x1.4p-6, 0x1.6p-6, 0x1.8p-6, 0x1.ap-6, 0x1.cp-6, 0x1.ep-6, 0x1p-5,   0x1.2p-5,
    0x1.4p-5, 0x1.6p-5, 0x1.8p-5, 0x1.ap-5, 0x1.cp-5, 0x1.ep-5, 0x1p-4,   0x1.2p-4, 0x1.4p-4,
    0x1.6p-4, 0x1.8p-4, 0x1.ap-4, 0x1.cp-4, 0x1.ep-4, 0x1p-3,   0x1.2p-3, 0x1.4p-3, 0x1.6p-3,
    0x1.8p-3, 0x1.ap-3, 0x1.cp-3, 0x1.ep-3, 0x1p-2,   0x1.2p-2, 0x1.4p-2, 0x1.6p-2, 0x1.8p-2,
    0x1.ap-2, 0x1.cp-2, 0x1.ep-2, 0x1p-1,   0x1.2p-1, 0x1.4p-1, 0x1.6p-1, 0x1.8p-1, 0x1.ap-1,
    0x1.cp-1, 0x1.ep-1, 1,        0x1.2p0,  0x1.4p0,  0x1.6p0,  0x1.8p0,  0x1.ap0,  0x1.cp0,
    0x1.ep0,  2,        0x1.2p1,  0x1.4p1,  0x1.6p1,  3,        0x1.ap1,  0x1.cp1,  0x1.ep1,
    4,        0x1.2p2,  5,        0x1.6p2,  6,        0x1.ap2,  7,        0x1.ep2,  8,
    9,        10,       11,       12,       13,       14,       15,       16,       18,
    20,       22,       24,       26,       28,       30,       32,       36,       40,
    44,       48,       52,       56,       60,       64,       72,       80,       88,
    96,       104,      112,      120,      128,      144,      160,      176,      192,
    208,      224,      240,      256,      288,      320,      352,      384,      416,
    448};
const std::vector<double> e5m2_numbers{
    0,       0x1p-16,   0x1p-15,   0x1.8p-15, 0x1p-14, 0x1.4p-14, 0x1.8p-14, 0x1.cp-14,
    0x1p-13, 0x1.4p-13, 0x1.8p-13, 0x1.cp-13, 0x1p-12, 0x1.4p-12, 0x1.8p-12, 0x1.cp-12,
    0x1p-11, 0x1.4p-11, 0x1.8p-11, 0x1.cp-11, 0x1p-10, 0x1.4p-10, 0x1.8p-10, 0x1.cp-10,
    0x1p-9,  0x1.4p-9,  0x1.8p-9,  0x1.cp-9,  0x1p-8,  0x1.4p-8,  0x1.8p-8,  0x1.cp-8,
    0x1p-7,  0x1.4p-7,  0x1.8p-7,  0x1.cp-7,  0x1p-6,  0x1.4p-6,  0x1.8p-6,  0x1.cp-6,
    0x1p-5,  0x1.4p-5,  0x1.8p-5,  0x1.cp-5,  0x1p-4,  0x1.4p-4,  0x1.8p-4,  0x1.cp-4,
    0x1p-3,  0x1.4p-3,  0x1.8p-3,  0x1.cp-3,  0x1p-2,  0x1.4p-2,  0x1.8p-2,  0x1.cp-2,
    0x1p-1,  0x1.4p-1,  0x1.8p-1,  0x1.cp-1,  1,       0x1.4p0,   0x1.8p0,   0x1.cp0,
    2,       0x1.4p1,   3,         0x1.cp1,   4,       5,         6,         7,
    8,       10,        12,        14,        16,      20,        24,        28,
    32,      40,        48,        56,        64,      80,        96,        112,
    128,     160,       192,       224,       256,     320,       384,       448,
    512,     640,       768,       896,       1024,    1280,      1536,      1792,
    2048,    2560,      3072,      3584,      4096,    5120,      6144,      7168,
    8192,    10240,     12288,     14336,     16384,   20480,     24576,     28672,
    32768,   40960,     49152,     57344};

const std::vector<double>& numbers(Fp8 kind) {
  return kind == Fp8::e4m3 ? e4m3_numbers : e5m2_numbers;
}

constexpr Fp8 both[] = {Fp8::e4m3, Fp8::e5m2};
constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(Fp8Codec, AllCodesHaveTheirValues) {
  EXPECT_EQ(e4m3_numbers.back(), 448.0);
  EXPECT_EQ(e5m2_numbers.back(), 57344.0);
  for (const Fp8 kind : both) {
    const std::array<float, 256> values = fp8_values(kind);
    for (std::size_t code = 0; code < 128; ++code) {
      const float positive = values[code], negative = values[code + 128];
      if (code < numbers(kind).size()) {
        EXPECT_EQ(positive, numbers(kind)[code]) << code;
        EXPECT_EQ(std::signbit(negative), true) << code;
        EXPECT_EQ(negative, -positive) << code;
      } else if (kind == Fp8::e5m2 && code == 0x7c) {
        EXPECT_EQ(positive, infinity);
        EXPECT_EQ(negative, -infinity);
      } else {
        EXPECT_TRUE(std::isnan(positive) && std::isnan(negative)) << code;
      }
    }
  }
}

// The code of the nearest number of the table; of two, the one whose last bit is 0.
std::uint8_t nearest(Fp8 kind, double x) {
  const std::vector<double>& table = numbers(kind);
  std::size_t best = 0;
  for (std::size_t code = 1; code < table.size(); ++code) {
    const double distance = std::abs(table[code] - std::abs(x)),
                 shortest = std::abs(table[best] - std::abs(x));
    if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best + (std::signbit(x) ? 128 : 0));
}

TEST(Fp8Codec, RoundsToNearestAndTiesToEven) {
  for (const Fp8 kind : both) {
    const std::vector<double>& table = numbers(kind);
    std::vector<float> samples;
    for (std::size_t code = 0; code + 1 < table.size(); ++code) {
      const float here = static_cast<float>(table[code]),
                  middle = static_cast<float>((table[code] + table[code + 1]) / 2);
      for (const float x : {here, middle})
        for (const float sample : {x, std::nextafter(x, infinity), std::nextafter(x, 0.0f)})
          samples.push_back(sample);
    }
    std::mt19937 random(1);
    std::uniform_real_distribution<float> exponent(-40.0f, 20.0f);
    for (int i = 0; i < 20000; ++i) samples.push_back(std::exp2(exponent(random)));
    for (const float x : samples)
      for (const float sample : {x, -x})
        ASSERT_EQ(fp8_encode(kind, sample), nearest(kind, static_cast<double>(sample)))
            << sample << " in format " << static_cast<int>(kind);
  }
}

TEST(Fp8Codec, BeyondTheLargestNumber) {
  for (const Fp8 kind : both) {
    const auto largest = static_cast<std::uint8_t>(numbers(kind).size() - 1);
    for (const float x : {static_cast<float>(numbers(kind).back()), 1e5f, 3e38f, infinity}) {
      EXPECT_EQ(fp8_encode(kind, x), largest) << x;
      EXPECT_EQ(fp8_encode(kind, -x), largest + 128) << x;
    }
    EXPECT_EQ(fp8_encode(kind, std::numeric_limits<float>::quiet_NaN()), fp8_nan);
    EXPECT_TRUE(std::isnan(fp8_values(kind)[fp8_nan]));
    EXPECT_EQ(fp8_encode(kind, 0.0f), 0);
    EXPECT_EQ(fp8_encode(kind, -0.0f), 128);
    EXPECT_EQ(fp8_encode(kind, std::numeric_limits<float>::denorm_min()), 0);
  }
}

float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t as_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(Fp8Codec, TheStepIsTheSmallestPowerOfTwoThatHoldsTheLargest) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> exponent(-110.0f, 127.9f);
  for (const Fp8 kind : both) {
    const float top = static_cast<float>(numbers(kind).back());
    std::vector<float> samples{1.0f, top, std::nextafter(top, infinity), 1.75f, 1.76f, 3.4e38f};
    for (int i = 0; i < 5000; ++i) samples.push_back(std::exp2(exponent(random)));
    for (const float largest : samples) {
      const std::uint32_t bits = fp8_step_bits(kind, as_bits(largest));
      EXPECT_EQ(bits & 0x7fffffu, 0u) << largest;
      const float step = as_float(bits), inverse = as_float(fp8_inverse_step_bits(bits));
      EXPECT_EQ(step * inverse, 1.0f);
      EXPECT_LE(largest * inverse, top) << largest;
      EXPECT_GT(largest * inverse * 2.0f, top) << largest;
    }
    EXPECT_EQ(as_float(fp8_step_bits(kind, 0)), 1.0f);
    // As small as a normal float32.
    EXPECT_EQ(as_float(fp8_step_bits(kind, as_bits(1e-44f))), 0x1p-126f);
    for (const float x : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
      const std::uint32_t step = fp8_step_bits(kind, as_bits(x) & 0x7fffffffu);
      EXPECT_TRUE(std::isnan(as_float(step)));
      EXPECT_TRUE(std::isnan(as_float(fp8_inverse_step_bits(step))));
    }
  }
}

}  // namespace
}  // namespace ebb::test
