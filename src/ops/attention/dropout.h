// The mask of attention's dropout. Kernels process scores in tiles of many shapes, with queries as
// rows or with keys as rows, and all must generate the same mask without drawing a score twice. So
// it is drawn for groups of 32 scores that match the register layout of tensor cores.
//
// The scores of a head are divided into blocks of 16 queries × 16 keys, and a block into 8 groups:
// queries r and r + 8 with all keys of the block. A group has 16 random words. A score's bits in
// them, the lowest first, are a number u of 16 bits, and the score is kept where u >= limit, the
// probability in units of 2⁻¹⁶. One logic instruction compares a bit of all 32 numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ebb/op.h"
#include "ebb/random.h"

namespace ebb {

// The mask as a tensor (B, H, T, S): 0 for dropped weights, the scale factor for kept ones.
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
  // The keep probability and its inverse, the scale factor. Both use the rounded probability, so
  // that expectations are exact.
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

  // The first group of a head of all batches; the group of a score within its head; its bit in the
  // group.
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

  // Refines u >= limit for a group's numbers by one more digit. Starts from ~0: with no digits all
  // are equal.
  constexpr std::uint32_t compared(std::uint32_t kept, std::uint32_t word, int digit) const {
    return (kept & word) | (passing[digit] & (kept | word));
  }
};

}  // namespace attention
}  // namespace ebb
