// Launches the instructions of a plan on a GPU, each on the stream of its lane (plan/lanes.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/cuda/cuda.h"
#include "ebb/plan.h"
#include "runtime/resident.h"

namespace ebb {

cuda::Lane lane_of(const Plan& plan, const Instruction& instruction);

class Lanes {
 public:
  explicit Lanes(const Plan& plan);

  // Launches all kernels; a chain of joined kernels is one launch. At the end the main stream waits
  // for the others.
  void start(const Plan& plan, std::span<const Kernel> kernels, std::span<const KernelArgs> args,
             std::span<const Launched> launches) const;

 private:
  std::vector<int> mark_of_;  // by instruction: its event's number if another waits for it, or -1
  std::vector<InstructionId> last_;   // of every lane except the main one
  std::optional<cuda::Marks> marks_;  // the first: the beginning of the step
};

}  // namespace ebb
