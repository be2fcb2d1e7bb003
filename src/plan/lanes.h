// Lanes of instructions that run concurrently. On a device that can run two kernels at a time, the
// second lane has the instructions on whose results the first does not depend: updates, and sums
// that only updates read. They use multiprocessors that the first lane leaves idle. Copies to and
// from other tiers of memory have a lane for each direction.
#pragma once

#include <vector>

#include "ebb/plan.h"

namespace ebb::planning {

// When each instruction starts and ends, in ms, if lanes wait only for the values they read: how a
// step would run if memory were unlimited. Copies have a lane for each direction, whether they are
// in it already or not.
struct Times {
  std::vector<double> starts, ends;
};
Times times_of(const Plan& plan);

// Moves copies between tiers to their lanes, if there are any.
void mark_transfers(Plan& plan);

// Adds the second lane and moves instructions to it.
void mark_beside(Plan& plan);

// Extends the live ranges of buffers that other lanes use to the time when their instructions are
// expected to end, as far as at most `limit` bytes are live at once. Without this, the next
// instruction of the first lane that reuses their memory would have to wait.
void stretch_lives(Plan& plan, Bytes limit);

// Sets the instructions of other lanes that each instruction has to wait for
// (`Instruction::waits`). All buffers must have their offsets.
void order_lanes(Plan& plan);

// The predicted time of a plan whose lanes wait for each other as set. The second lane shares the
// device with the first, which takes that much longer; copies overlap with both.
double makespan(const Plan& plan);

}  // namespace ebb::planning
