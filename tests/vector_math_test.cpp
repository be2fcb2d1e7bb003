// The elementary functions of vector_math.h in float, over dense sweeps of their arguments.
#include "core/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace ebb::test {
namespace {

double in_units(float value, long double exact) {
  const float nearest = static_cast<float>(exact);
  if (value == nearest || (std::isnan(value) && std::isnan(nearest))) return 0.0;
  if (!std::isfinite(value) || !std::isfinite(nearest)) return INFINITY;
  // The spacing of floats at the exact value; below the normal range it stays the same.
  const int exponent = std::max(std::ilogb(nearest), -126);
  return static_cast<double>(std::abs(static_cast<long double>(value) - exact) /
                             std::ldexp(1.0L, exponent - 23));
}

// The worst error over floats from `low` to `high` in steps through their bit patterns.
template <class F, class G>
double worst_over(float low, float high, const F& fast, const G& exact, float& where) {
  constexpr std::int64_t points = 1 << 22;
  // Patterns of one sign count up with the magnitude; negative ones are mapped below zero.
  const auto rank = [](float x) {
    const std::int64_t bits = std::bit_cast<std::int32_t>(std::abs(x));
    return std::signbit(x) ? -bits : bits;
  };
  const std::int64_t begin = rank(low), end = rank(high);
  double worst = 0.0;
  for (std::int64_t i = 0; i < points; ++i) {
    const std::int64_t at = begin + static_cast<std::int64_t>(static_cast<double>(end - begin) *
                                                              static_cast<double>(i) / points);
    const float magnitude = std::bit_cast<float>(static_cast<std::int32_t>(std::abs(at)));
    const float x = at < 0 ? -magnitude : magnitude;
    const double error = in_units(fast(x), exact(static_cast<long double>(x)));
    if (error > worst) worst = error, where = x;
  }
  return worst;
}

// vector_math.h promises two units in the last place.
TEST(VectorMath, WithinTwoUnitsInTheLastPlace) {
  const float huge = std::numeric_limits<float>::max();
  float where = 0.0f;
  const auto check_function = [&](const char* name, float low, float high, auto fast, auto exact) {
    EXPECT_LE(worst_over(low, high, fast, exact, where), 2.0) << name << " at " << where;
  };
  // exp underflows to 0 at -104 and overflows at 88.72.
  check_function(
      "exp", -103.9f, 88.72f, [](float x) { return vm::exp(x); },
      [](long double x) { return std::exp(x); });
  check_function(
      "log", 0x1p-149f, huge, [](float x) { return vm::log(x); },
      [](long double x) { return std::log(x); });
  check_function(
      "log near 1", 0.5f, 2.0f, [](float x) { return vm::log(x); },
      [](long double x) { return std::log(x); });
  check_function(
      "tanh", -20.0f, 20.0f, [](float x) { return vm::tanh(x); },
      [](long double x) { return std::tanh(x); });
  check_function(
      "erf", -6.0f, 6.0f, [](float x) { return vm::erf(x); },
      [](long double x) { return std::erf(x); });
}

// Compositions of these functions lose a little more.
TEST(VectorMath, SigmoidAndSoftplus) {
  float where = 0.0f;
  EXPECT_LE(worst_over(
                -87.0f, 87.0f, [](float x) { return vm::sigmoid(x); },
                [](long double x) { return 1.0L / (1.0L + std::exp(-x)); }, where),
            4.0)
      << "sigmoid at " << where;
  EXPECT_LE(
      worst_over(
          -100.0f, 100.0f, [](float x) { return vm::softplus(x); },
          [](long double x) { return (x > 0 ? x : 0.0L) + std::log1p(std::exp(-std::abs(x))); },
          where),
      4.0)
      << "softplus at " << where;
}

TEST(VectorMath, Limits) {
  const float inf = INFINITY;
  EXPECT_EQ(vm::exp(inf), inf);
  EXPECT_EQ(vm::exp(-inf), 0.0f);
  EXPECT_EQ(vm::exp(0.0f), 1.0f);
  EXPECT_EQ(vm::exp(100.0f), inf);
  EXPECT_EQ(vm::exp(-200.0f), 0.0f);
  EXPECT_EQ(vm::log(0.0f), -inf);
  EXPECT_EQ(vm::log(-0.0f), -inf);
  EXPECT_EQ(vm::log(inf), inf);
  EXPECT_EQ(vm::log(1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(vm::log(-1.0f)));
  EXPECT_TRUE(std::isnan(vm::log(-inf)));
  EXPECT_EQ(vm::tanh(inf), 1.0f);
  EXPECT_EQ(vm::tanh(-inf), -1.0f);
  EXPECT_EQ(vm::erf(inf), 1.0f);
  EXPECT_EQ(vm::erf(-inf), -1.0f);
  EXPECT_TRUE(std::signbit(vm::tanh(-0.0f)));
  EXPECT_TRUE(std::signbit(vm::erf(-0.0f)));
  EXPECT_EQ(vm::sigmoid(inf), 1.0f);
  EXPECT_EQ(vm::sigmoid(-inf), 0.0f);
  EXPECT_EQ(vm::softplus(inf), inf);
  EXPECT_EQ(vm::softplus(-inf), 0.0f);
  for (auto f : {+[](float x) { return vm::exp(x); }, +[](float x) { return vm::log(x); },
                 +[](float x) { return vm::tanh(x); }, +[](float x) { return vm::erf(x); },
                 +[](float x) { return vm::sigmoid(x); }, +[](float x) { return vm::softplus(x); }})
    EXPECT_TRUE(std::isnan(f(NAN)));
}

}  // namespace
}  // namespace ebb::test
