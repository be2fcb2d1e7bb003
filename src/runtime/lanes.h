// Starts the instructions of a plan on a GPU, each in its lane (plan/lanes.h).
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

  // Everything, so that what is started in the main lane afterwards waits for both.
  void start(const Plan& plan, std::span<const Kernel> kernels,
             std::span<const KernelArgs> args) const;

 private:
  std::vector<int> mark_of_;  // of every instruction that somebody waits for, or -1
  InstructionId last_beside_;
  std::optional<cuda::Marks> marks_;
};

}  // namespace ebb
