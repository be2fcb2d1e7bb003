// Counter-based randomness. A number is a pure function of (seed, step, key, index), so computing
// it again, in any order and on any number of threads, gives the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace ebb {

// The part that changes between runs and steps.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

// Names one random node of a program. The same program traced twice gets the same keys.
struct RandomKey {
  std::uint64_t value = 0;
  friend bool operator==(RandomKey, RandomKey) = default;
};

// The next key under the current module path (see PathScope): a hash of the path and a count of the
// keys drawn in that scope.
RandomKey next_random_key();

// For kernels: compilers would otherwise multiply 64-bit factors.
constexpr std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    std::uint64_t product = 0;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
  }
#endif
  return static_cast<std::uint64_t>(a) * b;
}

// Philox 4x32 (Salmon et al., 2011): four 32-bit words per counter.
struct Philox {
  std::array<std::uint32_t, 2> key;
  std::uint64_t stream;  // the high half of the counter

  constexpr Philox(RandomState state, RandomKey node)
      : key{static_cast<std::uint32_t>(state.seed ^ (state.step * 0x9E3779B97F4A7C15ull)),
            static_cast<std::uint32_t>((state.seed ^ (state.step * 0x9E3779B97F4A7C15ull)) >> 32)},
        stream(node.value) {}

  constexpr std::array<std::uint32_t, 4> operator()(std::uint64_t counter) const {
    return by_rounds<10>(counter);
  }
  // Ten rounds have a safety margin; seven, for numbers that are drawn by the billion, are the
  // fewest that pass all tests of BigCrush.
  template <int rounds>
  constexpr std::array<std::uint32_t, 4> by_rounds(std::uint64_t counter) const {
    std::uint32_t c0 = static_cast<std::uint32_t>(counter),
                  c1 = static_cast<std::uint32_t>(counter >> 32);
    std::uint32_t c2 = static_cast<std::uint32_t>(stream),
                  c3 = static_cast<std::uint32_t>(stream >> 32);
    std::uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t p0 = wide_product(c0, 0xD2511F53u), p1 = wide_product(c2, 0xCD9E8D57u);
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }
};

// Uniform in [0, 1) with 24 bits.
constexpr float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

}  // namespace ebb
