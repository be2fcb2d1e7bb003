// Which weights attention's dropout keeps. Kernels meet scores in tiles of many shapes, with
// queries as rows or with keys as rows, and all must find the same mask without drawing a score
// twice. So it is drawn for 32 scores at a time, chosen as the lanes of tensor cores have them.
//
// The scores of a head are cut into blocks of 16 queries × 16 keys, and a block into 8 groups:
// queries r and r + 8 with all keys of the block. A group has 16 random words. A score's bits in
// them, the lowest first, are a number u of 16 bits, and the score is kept where u >= limit, the
// probability in units of 2⁻¹⁶. One logic instruction compares a bit of all 32 numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ebb/op.h"
#include "ebb/random.h"

namespace ebb {

// The mask as a tensor (B, H, T, S): 0 where a weight is dropped, else what it is multiplied by.
Tensor attention_dropout(const Shape& scores, double probability, DType dtype, Device device,
                         RandomKey key);

namespace attention {

struct DropoutMask {
  static constexpr int digits = 16;                 // of a score's number
  static constexpr int counters = digits / 4;       // of Philox, for a group
  static constexpr int rounds = 7;                  // of Philox
  static constexpr std::uint32_t edge = 16;         // queries and keys of a block
  static constexpr std::uint32_t block_groups = 8;  // groups of a block

  std::uint32_t query_blocks, key_blocks;  // of a head
  // Of weights that are kept, and what they are multiplied by. Of what is drawn, not of what was
  // asked for: means stay what they are.
  double share, keep;
  std::uint32_t passing[digits];  // all ones where the limit's digit is 0, else 0

  constexpr DropoutMask(double probability, std::int64_t queries, std::int64_t keys)
      : query_blocks(static_cast<std::uint32_t>((queries + edge - 1) / edge)),
        key_blocks(static_cast<std::uint32_t>((keys + edge - 1) / edge)),
        passing{} {
    constexpr int units = 1 << digits;
    const int limit = std::min(static_cast<int>(probability * units + 0.5), units - 1);
    share = static_cast<double>(units - limit) / units;
    keep = 1.0 / share;
    for (int k = 0; k < digits; ++k) passing[k] = (limit >> k & 1) != 0 ? 0u : ~0u;
  }

  // The first group of a head of all batches; which one of the head's a score is in, and where.
  constexpr std::uint64_t first_group(std::uint64_t head) const {
    return head * query_blocks * key_blocks * block_groups;
  }
  constexpr std::uint64_t group(std::uint32_t i, std::uint32_t j) const {
    return (static_cast<std::uint64_t>(i / edge) * key_blocks + j / edge) * block_groups +
           i % block_groups;
  }
  static constexpr std::uint32_t bit(std::uint32_t i, std::uint32_t j) {
    return i % edge / block_groups * edge + j % edge;
  }

  // Whether u >= limit for a group's numbers, with one more digit than before. Starts from ~0: all
  // are equal in none.
  constexpr std::uint32_t compared(std::uint32_t kept, std::uint32_t word, int digit) const {
    return (kept & word) | (passing[digit] & (kept | word));
  }
};

}  // namespace attention
}  // namespace ebb
