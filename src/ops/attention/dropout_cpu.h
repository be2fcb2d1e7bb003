// The dropout mask on the CPU, one block at a time: the counters of a block are consecutive.
#pragma once

#include <array>

#include "ops/attention/dropout.h"
#include "ops/pointwise/philox_words.h"

namespace ebb::attention {

// The groups of the block at (i, j) of a head of all batches: a bit for each of their scores.
using KeptBlock = std::array<std::uint32_t, DropoutMask::block_groups>;
inline KeptBlock draw_block(const DropoutMask& mask, const Philox& philox, std::int64_t head,
                            std::int64_t i, std::int64_t j) {
  constexpr std::size_t at_once = philox_counters / DropoutMask::counters;  // groups
  static_assert(DropoutMask::block_groups % at_once == 0);
  const std::uint64_t first =
      mask.first_group(static_cast<std::uint64_t>(head)) +
      mask.group(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j));
  KeptBlock kept;
  std::uint32_t words[4 * philox_counters];
  for (std::size_t r = 0; r < DropoutMask::block_groups; ++r) {
    if (r % at_once == 0)
      philox_words<DropoutMask::rounds>(philox, (first + r) * DropoutMask::counters, words);
    kept[r] = ~0u;
    for (int k = 0; k < DropoutMask::digits; ++k)
      kept[r] = mask.compared(
          kept[r], words[r % at_once * DropoutMask::digits + static_cast<std::size_t>(k)], k);
  }
  return kept;
}

}  // namespace ebb::attention
