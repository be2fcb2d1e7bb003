// Groups instructions that one resident kernel can run (ops/resident/task.h): chains of products
// with few rows and the ops between them, as in a step of generation.
#pragma once

#include <span>
#include <vector>

#include "ebb/plan.h"
#include "ops/resident/task.h"

namespace ebb {

// Kernels to launch in order: instructions, or chains of them.
struct Launched {
  std::vector<InstructionId> instructions = {};  // one, or those of a chain in their order
  std::vector<resident::Listed> tasks = {};      // of a chain; none: the instruction runs by itself
  resident::Launch launch = nullptr;
  DType dtype = f32;
};

// `alone`: by instruction, whether it must be launched by itself, after all instructions before it.
std::vector<Launched> launches_of(const Plan& plan, std::span<const Kernel> kernels,
                                  std::span<const KernelArgs> args, const std::vector<bool>& alone);

}  // namespace ebb
