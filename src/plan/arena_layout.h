// Offsets in one block of memory for buffers whose live ranges are known.
#pragma once

#include <span>
#include <vector>

#include "ebb/plan.h"

namespace ebb::planning {

// Sets the offset of every buffer of a space so that no two buffers overlap while both are live.
// Returns the size of the block. A block smaller than `enough` is no better than one of that size:
// the search ends at the first layout of at most that size, and few layouts are tried if it cannot
// be reached.
Bytes lay_out(std::span<Buffer> buffers, SpaceId space = arena_space, Bytes enough = {});

// The largest sum of sizes of arena buffers live at one instruction, and that instruction.
struct LivePeak {
  Bytes bytes;
  InstructionId instruction{0};
};
LivePeak live_peak(std::span<const Buffer> buffers, int instructions);

}  // namespace ebb::planning
