// A sequence of random numbers, for code that does not need exactly one number per element.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "ebb/random.h"

namespace ebb::data {

// The finaliser of SplitMix64: states and keys that differ in one bit become unrelated.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class Draws {
 public:
  Draws(RandomState state, std::uint64_t stream) : philox_(state, {stream}) {}

  std::uint32_t bits() {
    if (used_ == 4) words_ = philox_(counter_++), used_ = 0;
    return words_[used_++];
  }

  // Uniform in [0, 1) with 53 bits.
  double uniform() {
    const std::uint64_t high = bits(), low = bits();
    return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
  }

  // Uniform among [0, n), without bias (Lemire, 2019); n is positive.
  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t unfair = (0 - n) % n;  // 2^64 modulo n: products below this are rejected
    for (;;) {
      const std::uint64_t high = bits(), low = bits();
      const auto product = static_cast<Wide>(high << 32 | low) * n;
      if (static_cast<std::uint64_t>(product) >= unfair)
        return static_cast<std::uint64_t>(product >> 64);
    }
  }

  double exponential() { return -std::log1p(-uniform()); }

  // A pair of independent standard normal numbers (Box and Muller).
  std::array<float, 2> normals() {
    const float u = (static_cast<float>(bits() >> 8) + 0.5f) * 0x1p-24f;  // never zero
    const float angle = uniform_from_bits(bits()) * (2 * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2 * std::log(u));
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }

 private:
  __extension__ typedef unsigned __int128 Wide;

  Philox philox_;
  std::uint64_t counter_ = 0;
  std::array<std::uint32_t, 4> words_{};
  unsigned used_ = 4;
};

}  // namespace ebb::data
