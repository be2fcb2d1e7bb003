// Two lanes of instructions for a device that can run kernels beside one another. In the second are
// those that nothing in the step waits for: updates, and the sums that only updates read. They fill
// multiprocessors that the others leave idle.
#pragma once

#include <vector>

#include "ebb/plan.h"

namespace ebb {

// Adds the second lane, and puts its instructions there.
void mark_beside(Plan& plan);

// Lets buffers that instructions of the second lane use live on while those may still run, wherever
// no more than `limit` bytes are live at once. Otherwise the next instruction that takes their
// place would wait.
void stretch_lives(Plan& plan, Bytes limit);

// What each instruction has to wait for in the other lane (`Instruction::waits`), with all buffers
// in their places.
void order_lanes(Plan& plan);

}  // namespace ebb
