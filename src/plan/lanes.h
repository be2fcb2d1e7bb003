// Two lanes of instructions for a device that can run kernels concurrently. The second lane has the
// instructions on whose results the first does not depend: updates, and sums that only updates
// read. They use multiprocessors that the first lane leaves idle.
#pragma once

#include <vector>

#include "ebb/plan.h"

namespace ebb {

// Adds the second lane and moves instructions to it.
void mark_beside(Plan& plan);

// Extends the live ranges of buffers that the second lane uses to the time when its instructions
// are expected to end, as far as at most `limit` bytes are live at once. Without this, the next
// instruction of the first lane that reuses their memory would have to wait.
void stretch_lives(Plan& plan, Bytes limit);

// Sets the instructions of the other lane that each instruction has to wait for
// (`Instruction::waits`). All buffers must have their offsets.
void order_lanes(Plan& plan);

}  // namespace ebb
