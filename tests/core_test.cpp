// The foundations: byte counts, half types, random numbers, and the lifetime of graphs.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "core/machine_half.h"
#include "ebb/node.h"
#include "ebb/storage.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

// --- Bytes

TEST(BytesText, Formats) {
  EXPECT_EQ(to_string(0_B), "0 B");
  EXPECT_EQ(to_string(9999_B), "9999 B");
  EXPECT_EQ(to_string(10000_B), "9.77 KiB");
  EXPECT_EQ(to_string(64_KiB), "64.00 KiB");
  EXPECT_EQ(to_string(9999_KiB), "9999.00 KiB");
  EXPECT_EQ(to_string(1536_MiB), "1536.00 MiB");
  EXPECT_EQ(to_string(24_GiB), "24.00 GiB");
  EXPECT_EQ(to_string(Bytes{-20480}), "-20.00 KiB");
  EXPECT_EQ(to_string(Bytes{std::numeric_limits<std::int64_t>::max()}), "8192.00 PiB");
}

TEST(BytesText, Parses) {
  const std::pair<const char*, std::int64_t> good[] = {{"0", 0},
                                                       {"4096", 4096},
                                                       {"7B", 7},
                                                       {"1KiB", 1024},
                                                       {"2GiB", 1ll << 31},
                                                       {"1.5 MiB", 3 << 19},
                                                       {"300kB", 300000},
                                                       {"300KB", 300000},
                                                       {"2MB", 2000000},
                                                       {"3GB", 3000000000},
                                                       {"1TiB", 1ll << 40},
                                                       {"1TB", 1000000000000},
                                                       {"1PiB", 1ll << 50},
                                                       {"0.5KiB", 512},
                                                       {"1e3", 1000}};
  for (const auto& [text, count] : good) EXPECT_EQ(parse_bytes(text), Bytes{count}) << text;
  for (Bytes bytes : {0_B, 512_B, 64_KiB, 24_GiB, Bytes{1ll << 60}})
    EXPECT_EQ(parse_bytes(to_string(bytes)), bytes);
  for (const char* text : {"", " ", "GiB", "two", "-1", "-1KiB", "nan", "inf", "2 gib", "2GiBs",
                           "2 GiB x", "0x10", "1,5GiB", "1.5.2", " 5"})
    expect_error([&] { parse_bytes(text); }, {std::string("'") + text + "'", "number of bytes"});
  for (const char* text : {"1e30", "9e9 TiB", "4096PiB"})
    expect_error([&] { parse_bytes(text); }, {std::string("'") + text + "'", "less than 4096PiB"});
}

TEST(BytesText, RoundsUp) {
  EXPECT_EQ(round_up(0_B, 64_B), 0_B);
  EXPECT_EQ(round_up(1_B, 64_B), 64_B);
  EXPECT_EQ(round_up(64_B, 64_B), 64_B);
  EXPECT_EQ(round_up(65_B, 64_B), 128_B);
}

// --- Half types

// The number that a half type's bits stand for, by the definition of the formats: exact in double.
double meaning(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits,
            mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The bits nearest to a float by the definition: a tie between neighbours goes to the even one.
template <class T>
void expect_nearest(float value, int mantissa_bits) {
  const std::uint16_t bits = T(value).bits;
  const double x = value, got = meaning(bits, mantissa_bits);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(got));
    return;
  }
  EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0) << value;
  const std::uint16_t infinity = static_cast<std::uint16_t>(0x7fff & ~((1 << mantissa_bits) - 1));
  if (std::isinf(value)) {
    EXPECT_EQ(bits & 0x7fff, infinity);
    return;
  }
  // Beyond the largest value the grid continues with one more value, which stands for infinity.
  const auto grid = [&](int magnitude) {
    return magnitude < infinity
               ? meaning(static_cast<std::uint16_t>(magnitude), mantissa_bits)
               : 2.0 * meaning(static_cast<std::uint16_t>(infinity - (1 << mantissa_bits)),
                               mantissa_bits);
  };
  const int magnitude = bits & 0x7fff;
  const double distance = std::abs(std::abs(x) - grid(magnitude));
  for (int neighbour : {magnitude - 1, magnitude + 1}) {
    if (neighbour < 0 || neighbour > infinity) continue;
    const double other = std::abs(std::abs(x) - grid(neighbour));
    EXPECT_TRUE(distance < other || (distance == other && magnitude % 2 == 0) ||
                (magnitude == infinity && std::abs(x) > grid(magnitude)))
        << value << " became " << got;
  }
}

template <class T>
void check_half_type(int mantissa_bits) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    T half;
    half.bits = static_cast<std::uint16_t>(pattern);
    const float value = half;
    const double expected = meaning(half.bits, mantissa_bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << pattern;
    ASSERT_EQ(T(value).bits, half.bits) << pattern;
    if (std::isinf(value)) continue;
    // The float at the middle to the next value, and its two neighbours: both ways of rounding and
    // the tie itself.
    const double next = meaning(static_cast<std::uint16_t>(pattern + 1), mantissa_bits);
    if (!std::isfinite(next)) continue;
    const float middle = static_cast<float>((expected + next) / 2);
    for (float x : {middle, std::nextafter(middle, INFINITY), std::nextafter(middle, -INFINITY)})
      expect_nearest<T>(x, mantissa_bits);
    if (testing::Test::HasFailure()) return;
  }
  for (float x : {65504.0f, 65519.0f, 65520.0f, 65536.0f, 1e10f, 3.38e38f, 3.4e38f,
                  std::numeric_limits<float>::max(), 1e-45f, 1e-40f, 2.98023224e-08f,
                  2.98023260e-08f, INFINITY, -INFINITY, NAN})
    for (float signed_x : {x, -x}) expect_nearest<T>(signed_x, mantissa_bits);
}

TEST(HalfTypes, Float16OverAllPatterns) { check_half_type<Half>(10); }
TEST(HalfTypes, BFloat16OverAllPatterns) { check_half_type<BFloat16>(7); }

// The processor's conversions give the bits of the portable ones, those of NaN included.
TEST(HalfTypes, KernelsConvertAsThePublicHeaderDoes) {
  const auto expect_same_bits = [](std::uint32_t float_bits) {
    const float value = std::bit_cast<float>(float_bits);
    ASSERT_EQ(MachineHalf(value).bits, Half(value).bits) << std::hex << float_bits;
  };
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    MachineHalf machine;
    Half half;
    machine.bits = half.bits = static_cast<std::uint16_t>(pattern);
    const std::uint32_t wide = std::bit_cast<std::uint32_t>(static_cast<float>(half));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(machine)), wide) << pattern;
    // The value itself, the floats beside it, and the tie between it and the next one. Below
    // 2^-14 ties lie elsewhere and follow.
    for (std::uint32_t near :
         {wide - 1, wide, wide + 1, wide + 0xfff, wide + 0x1000, wide + 0x1001})
      expect_same_bits(near);
  }
  for (int k = 0; k < 1024; ++k)  // the ties between subnormal halves: (k + 1/2) 2^-24
    for (float sign : {1.0f, -1.0f})
      expect_same_bits(
          std::bit_cast<std::uint32_t>(sign * (static_cast<float>(k) + 0.5f) * 0x1p-24f));
  // A step that is odd and large visits every exponent and varied mantissas: about 4 million.
  for (std::uint64_t u = 0; u < (1ull << 32); u += 1021)
    expect_same_bits(static_cast<std::uint32_t>(u));
}

// --- Random numbers

// Known answers published with Random123 (philox4x32, 10 rounds).
TEST(PhiloxWords, KnownAnswers) {
  const auto words = [](std::uint64_t low, std::uint64_t high, std::uint32_t k0, std::uint32_t k1) {
    Philox philox({}, {high});
    philox.key = {k0, k1};
    return philox(low);
  };
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(words(0, 0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(~0ull, ~0ull, ~0u, ~0u), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x85a308d3243f6a88, 0x0370734413198a2e, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Moments {
  double mean = 0.0, variance = 0.0;
};
Moments moments(const std::vector<float>& values) {
  Moments m;
  for (float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (float v : values) m.variance += (v - m.mean) * (v - m.mean);
  m.variance /= static_cast<double>(values.size());
  return m;
}

// Means within five standard errors: a correct generator fails once in two million tries, and the
// seed is fixed.
TEST(RandomNumbers, HaveTheRightMoments) {
  constexpr std::int64_t n = 1 << 20;
  const double error = 5.0 / std::sqrt(static_cast<double>(n));
  const TraceScope fresh;
  const std::vector<float> uniform = random_uniform({n}, -1.0, 3.0).to_vector<float>();
  Moments m = moments(uniform);
  EXPECT_NEAR(m.mean, 1.0, error * std::sqrt(16.0 / 12.0));
  EXPECT_NEAR(m.variance, 16.0 / 12.0, error * std::sqrt(256.0 / 180.0));  // fourth moment w⁴/180
  for (float v : uniform) ASSERT_TRUE(v >= -1.0f && v < 3.0f);

  const std::vector<float> normal = random_normal({n}, 2.0, 0.5).to_vector<float>();
  m = moments(normal);
  EXPECT_NEAR(m.mean, 2.0, error * 0.5);
  EXPECT_NEAR(m.variance, 0.25, error * 0.25 * std::sqrt(2.0));
  const auto beyond = std::count_if(normal.begin(), normal.end(), [](float v) { return v > 3.0f; });
  const double tail = 0.022750132;  // of two standard deviations
  EXPECT_NEAR(static_cast<double>(beyond) / n, tail, error * std::sqrt(tail));

  for (double p : {0.1, 0.5, 0.9}) {
    const std::vector<float> dropped = dropout(ones({n}), p).to_vector<float>();
    const auto zero = std::count(dropped.begin(), dropped.end(), 0.0f);
    EXPECT_NEAR(static_cast<double>(zero) / n, p, error * std::sqrt(p * (1 - p)));
    EXPECT_NEAR(moments(dropped).mean, 1.0, error * std::sqrt(p / (1 - p)));
    for (float v : dropped) ASSERT_TRUE(v == 0.0f || v == static_cast<float>(1.0 / (1.0 - p)));
  }
}

TEST(RandomNumbers, NeighboursAreNotRelated) {
  constexpr std::size_t n = 1 << 18;
  const TraceScope fresh;
  const std::vector<float> a = random_normal({n}, 0.0, 1.0).to_vector<float>(),
                           b = random_normal({n}, 0.0, 1.0).to_vector<float>();
  for (std::size_t lag : {1u, 2u, 3u, 4u, 1024u}) {
    double own = 0.0, cross = 0.0;
    for (std::size_t i = 0; i + lag < n; ++i)
      own += a[i] * a[i + lag], cross += a[i] * b[i + lag - 1];
    EXPECT_NEAR(own / n, 0.0, 5.0 / std::sqrt(static_cast<double>(n))) << "lag " << lag;
    EXPECT_NEAR(cross / n, 0.0, 5.0 / std::sqrt(static_cast<double>(n))) << "lag " << lag;
  }
}

TEST(RandomNumbers, SeedAndStepChangeThem) {
  const TraceScope fresh;
  const Tensor x = random_uniform({64}, 0.0, 1.0);
  const auto values = [](const Tensor& t) { return t.to_vector<float>(); };
  EXPECT_EQ(values(eval(x, 1)), values(eval(x, 1)));
  EXPECT_NE(values(eval(x, 1)), values(eval(x, 2)));
  Program program({.inputs = {}, .outputs = {x}, .updates = {}});
  program.run();
  const auto first = values(program.output(0));
  EXPECT_EQ(program.step(), 1u);
  program.run();
  EXPECT_NE(values(program.output(0)), first);
  program.set_step(0);
  program.run();
  EXPECT_EQ(values(program.output(0)), first);
}

std::vector<std::uint64_t> keys_of_a_model() {
  std::vector<std::uint64_t> keys;
  const auto draw = [&] { keys.push_back(next_random_key().value); };
  draw();
  for (const char* layer : {"h.0", "h.1"}) {
    const PathScope path(layer);
    draw(), draw();
    const PathScope inner("mlp");
    draw();
  }
  for (int use = 0; use < 2; ++use) {  // one module, used twice
    const PathScope path("shared");
    draw();
  }
  draw();
  return keys;
}

TEST(RandomKeys, RepeatInEveryTraceAndNeverWithinOne) {
  std::vector<std::uint64_t> first, second;
  {
    const TraceScope trace;
    first = keys_of_a_model();
  }
  next_random_key();  // what was drawn outside does not matter
  {
    const TraceScope trace;
    second = keys_of_a_model();
  }
  EXPECT_EQ(first, second);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
}

// --- Lifetimes

TEST(Lifetimes, ADeepChainIsFreedWithoutRecursion) {
  const std::int64_t nodes = live_nodes();
  const Bytes bytes = live_bytes();
  {
    Tensor x = Tensor::from(std::vector<float>{1.0f}, {1});
    for (int i = 0; i < 1'000'000; ++i) x = neg(x);
    EXPECT_EQ(live_nodes(), nodes + 1'000'001);
  }
  EXPECT_EQ(live_nodes(), nodes);
  EXPECT_EQ(live_bytes(), bytes);
}

// Every other node reads the previous one twice.
TEST(Lifetimes, ADeepLadderIsFreedWithoutRecursion) {
  const std::int64_t nodes = live_nodes();
  {
    Tensor x = ones({1});
    for (int i = 0; i < 200'000; ++i) x = x + x;
    std::vector<Tensor> held = grad(sum(x), {x});
    EXPECT_GT(live_nodes(), nodes);
  }
  EXPECT_EQ(live_nodes(), nodes);
}

// Building, differentiating, fusing, planning and running walk graphs without recursion too.
TEST(Lifetimes, ADeepChainRuns) {
  const std::int64_t nodes = live_nodes();
  {
    const Tensor start = Tensor::from(std::vector<double>{1.0}, {1});
    Tensor x = start;
    for (int i = 0; i < 20'000; ++i) x = x * 0.5 + 0.5;
    EXPECT_EQ(x.item(), 1.0);
    EXPECT_EQ(grad(sum(x), {start})[0].item(), 0.0);  // 2^-20000
  }
  EXPECT_EQ(live_nodes(), nodes);
}

TEST(Lifetimes, ProgramsAndVariablesLeaveNothing) {
  const std::int64_t nodes = live_nodes();
  const Bytes bytes = live_bytes();
  {
    const Variable w(random_normal({32, 32}, 0.0, 1.0));
    const Tensor x = input({{4, 32}, f32}, "x");
    const Tensor loss = sum(square(matmul(x, w)));
    Program program(
        {.inputs = {x}, .outputs = {loss}, .updates = {{w, w - grad(loss, {w})[0] * 0.1}}});
    program.run({eval(ones({4, 32}))});
    Program moved = std::move(program);
    moved.run({eval(ones({4, 32}))});
    EXPECT_TRUE(w.has_value());
  }
  EXPECT_EQ(live_nodes(), nodes);
  EXPECT_EQ(live_bytes(), bytes);
}

}  // namespace
}  // namespace ebb::test
