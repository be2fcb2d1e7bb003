// Launches the instructions of a plan on a GPU, each on the stream of its lane (plan/lanes.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/cuda/cuda.h"
#include "ebb/plan.h"

namespace ebb {

inline cuda::Lane lane_of(const Plan& plan, const Instruction& instruction) {
  return plan.runs_beside(instruction) ? cuda::Lane::aside : cuda::Lane::main;
}

class Lanes {
 public:
  explicit Lanes(const Plan& plan);

  // Launches all kernels. At the end the main stream waits for the other one.
  void start(const Plan& plan, std::span<const Kernel> kernels,
             std::span<const KernelArgs> args) const;

 private:
  std::vector<int> mark_of_;  // by instruction: its event's number if another waits for it, or -1
  InstructionId last_beside_;
  std::optional<cuda::Marks> marks_;
};

}  // namespace ebb
