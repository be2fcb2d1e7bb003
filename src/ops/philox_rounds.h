// Philox (ebb/random.h) by fewer rounds than its ten, for numbers that are drawn by the billion.
#pragma once

#include <type_traits>

#include "ebb/random.h"

namespace ebb {

// CUDA's compiler would make a product of 64-bit factors of it.
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

template <int rounds>
constexpr std::array<std::uint32_t, 4> philox_by_rounds(const Philox& philox,
                                                        std::uint64_t counter) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter),
                c1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(philox.stream),
                c3 = static_cast<std::uint32_t>(philox.stream >> 32);
  std::uint32_t k0 = philox.key[0], k1 = philox.key[1];
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

}  // namespace ebb
