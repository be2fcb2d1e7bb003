// Philox for kernels that need many numbers: several counters at once.
#pragma once

#include <cstdint>

#include "ebb/random.h"

namespace ebb {

inline constexpr std::int64_t philox_counters = 16;  // run side by side

// The words of `philox_counters` consecutive counters. The rounds are those of Philox::operator(),
// on 32-bit words in 64-bit lanes: written with vector types, since compilers do not vectorise it.
template <int rounds = 10>
inline void philox_words(const Philox& philox, std::uint64_t first,
                         std::uint32_t (&words)[4 * philox_counters]) {
  typedef std::uint64_t Lanes __attribute__((vector_size(64)));
  constexpr int width = 8, vectors = philox_counters / width;
  constexpr std::uint64_t low = 0xFFFFFFFF;
  Lanes c0[vectors], c1[vectors], c2[vectors], c3[vectors];
  for (int v = 0; v < vectors; ++v) {
    const Lanes counter =
        Lanes{0, 1, 2, 3, 4, 5, 6, 7} + (first + static_cast<std::uint64_t>(v * width));
    c0[v] = counter & low, c1[v] = counter >> 32;
    c2[v] = Lanes{} + (philox.stream & low), c3[v] = Lanes{} + (philox.stream >> 32);
  }
  std::uint32_t k0 = philox.key[0], k1 = philox.key[1];
  for (int round = 0; round < rounds; ++round) {
    for (int v = 0; v < vectors; ++v) {
      const Lanes p0 = c0[v] * 0xD2511F53ull, p1 = c2[v] * 0xCD9E8D57ull;
      c0[v] = (p1 >> 32) ^ c1[v] ^ std::uint64_t{k0};
      c1[v] = p1 & low;
      c2[v] = (p0 >> 32) ^ c3[v] ^ std::uint64_t{k1};
      c3[v] = p0 & low;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int v = 0; v < vectors; ++v)
    for (int j = 0; j < width; ++j) {
      std::uint32_t* four = words + 4 * (v * width + j);
      four[0] = static_cast<std::uint32_t>(c0[v][j]),
      four[1] = static_cast<std::uint32_t>(c1[v][j]);
      four[2] = static_cast<std::uint32_t>(c2[v][j]),
      four[3] = static_cast<std::uint32_t>(c3[v][j]);
    }
}

}  // namespace ebb
