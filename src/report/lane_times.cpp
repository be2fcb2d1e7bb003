#include "report/lane_times.h"

#include <algorithm>

namespace ebb::report {

LaneTimes lane_times(const Plan& plan, std::span<const double> ms) {
  LaneTimes times;
  std::vector<double> free_at(std::max<std::size_t>(1, plan.lanes.size())),
      ends(plan.instructions.size());
  for (const InstructionId i : plan.instructions.ids()) {
    const Instruction& instruction = plan.instructions[i];
    const std::size_t lane = instruction.lane.index();
    double start = free_at[lane];
    for (const InstructionId other : instruction.waits)
      start = std::max(start, ends[other.index()]);
    times.start.push_back(start);
    times.clock.push_back(lane == 0 ? start : free_at[0]);
    free_at[lane] = ends[i.index()] = start + ms[i.index()];
    if (lane != 0 && plan.runs_beside(instruction)) free_at[0] += ms[i.index()];
    times.end = std::max({times.end, free_at[lane], free_at[0]});
  }
  return times;
}

std::vector<double> predicted_times(const Plan& plan) {
  std::vector<double> ms;
  for (const Instruction& instruction : plan.instructions) ms.push_back(instruction.predicted_ms);
  return ms;
}

}  // namespace ebb::report
