// Offsets for buffers that live over known stretches of the step, in one block of memory.
#pragma once

#include <span>
#include <vector>

#include "ebb/plan.h"

namespace ebb {

// Gives every buffer that lies in the arena an offset, so that no two that are live at once
// overlap. Returns the size of the block.
Bytes lay_out(std::span<Buffer> buffers);

// The largest sum of sizes of arena buffers live at one instruction, and that instruction.
struct LivePeak {
  Bytes bytes;
  InstructionId instruction{0};
};
LivePeak live_peak(std::span<const Buffer> buffers, int instructions);

}  // namespace ebb
