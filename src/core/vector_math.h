// Elementary functions written so that a loop over them vectorises: no branches, no calls. The
// float versions are within 2 units in the last place; polynomials come from
// tools/fit_vector_math.py. The double versions are the C library's, exact but scalar: double
// serves checks, not speed.
//
// Compile without -ffast-math: the rounding below relies on the order of operations.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ebb::vm {

inline double exp(double x) { return std::exp(x); }
inline double log(double x) { return std::log(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }

// Horner's rule, highest power first.
template <class... C>
inline float polynomial(float x, float first, C... rest) {
  float value = first;
  ((value = value * x + rest), ...);
  return value;
}

inline float select(bool condition, float a, float b) { return condition ? a : b; }

inline float exp(float x) {
  const float clamped =
      select(x < -104.0f, -104.0f, select(x > 89.0f, 89.0f, x));  // NaN passes through
  constexpr float magic = 0x1.8p23f;                              // adding it rounds to an integer
  const float n = (clamped * 1.44269504f + magic) - magic;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  const float p = polynomial(r, 0.000199096467f, 0.00139464461f, 0.00833328068f, 0.0416662619f,
                             0.166666672f, 0.5f);
  const float e = (p * r * r + r) + 1.0f;
  // 2^n in two factors, so that neither overflows nor loses a subnormal result.
  const std::int32_t whole = static_cast<std::int32_t>(n == n ? n : 0.0f), part = whole >> 1;
  const float s1 = std::bit_cast<float>((part + 127) << 23),
              s2 = std::bit_cast<float>((whole - part + 127) << 23);
  return e * s1 * s2;
}

inline float log(float x) {
  const bool tiny = x < 0x1p-126f;  // subnormals are scaled into range
  const float scaled = select(tiny, x * 0x1p23f, x);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  const std::int32_t shifted = static_cast<std::int32_t>(
      bits - 0x3f3504f3u);  // exponent changes where the mantissa passes sqrt(1/2)
  const float exponent = static_cast<float>(shifted >> 23) - select(tiny, 23.0f, 0.0f);
  const float m = std::bit_cast<float>((shifted & 0x007fffff) + 0x3f3504f3);
  const float f = m - 1.0f;
  const float p = polynomial(f, 0.0680091232f, -0.117266051f, 0.118909895f, -0.123964451f,
                             0.142177626f, -0.166685119f, 0.200022459f, -0.25f, 0.333333105f);
  const float value =
      exponent * 0.693359375f + (f + (p * f * f * f - 0.5f * f * f - exponent * 2.12194440e-4f));
  const float infinity = std::numeric_limits<float>::infinity();
  const float special = select(x == 0.0f, -infinity,
                               select(x < 0.0f, std::numeric_limits<float>::quiet_NaN(), x + x));
  return select(x > 0.0f && x < infinity, value, special);
}

inline float tanh(float x) {
  const float a = std::abs(x), s = x * x;
  const float small = a + a * s *
                              polynomial(s, 0.00214280374f, -0.00817709323f, 0.0217005014f,
                                         -0.0539467037f, 0.133332059f, -0.333333313f);
  const float large = 1.0f - 2.0f / (vm::exp(2.0f * a) + 1.0f);
  return std::copysign(select(a < 0.625f, small, large), x);  // -0 stays -0
}

inline float erf(float x) {
  const float a = std::abs(x), s = x * x;
  const float small =
      x + x * polynomial(s, -9.67359119e-06f, 0.000112682537f, -0.000848439639f, 0.00522105349f,
                         -0.0268654376f, 0.112837829f, -0.376126379f, 0.128379166f);
  const float t = select(a > 4.0f, 4.0f, a);  // erf(4) is 1 in float
  const float q = polynomial(t, 7.3421387e-07f, -1.16350902e-05f, 5.85485468e-05f, 0.000125243343f,
                             -0.00342031871f, 0.0239369944f, -0.107071593f, -0.634119928f,
                             -1.12923408f, 0.000130539906f);
  const float large = std::copysign(1.0f - vm::exp(q), x);
  return select(a < 1.0f, small, select(x != x, x, large));
}

template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + vm::exp(-x));
}

// log(1 + eˣ) without overflow.
template <class T>
inline T softplus(T x) {
  const T tail = vm::exp(-std::abs(x));  // in (0, 1]
  // log(1 + t) loses t below half an epsilon: there the answer is t itself, and in between the
  // quotient corrects the rounding of 1 + t.
  const T one_plus = T(1) + tail, kept = one_plus - T(1);
  const T log1p = kept == T(0) ? tail : vm::log(one_plus) * (tail / kept);
  return (x > T(0) ? x : T(0)) + log1p;
}

}  // namespace ebb::vm
