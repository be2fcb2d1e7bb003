// When the instructions of a plan run, lane by lane.
#pragma once

#include <span>
#include <vector>

#include "ebb/plan.h"

namespace ebb::report {

// Milliseconds since the step began, for every instruction.
struct LaneTimes {
  std::vector<double> start;
  // The time in the lane `compute` when the instruction is issued. It never decreases from one
  // instruction to the next, so that memory can be drawn over it.
  std::vector<double> clock;
  double end = 0.0;  // of the last lane
};

// Times for the given durations, one per instruction, by the planner's rules: a lane runs its
// instructions in order, each after those that it waits for, and a lane `beside` takes time from
// `compute`.
LaneTimes lane_times(const Plan& plan, std::span<const double> ms);

std::vector<double> predicted_times(const Plan& plan);

}  // namespace ebb::report
