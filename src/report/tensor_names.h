// Names for tensors that no module made.
#pragma once

#include <string>
#include <vector>

#include "ebb/plan.h"

namespace ebb::report {

// For every buffer and every instruction of a plan: the path of its module or of its variable.
// Without one, its role in the step: "input 0", "logits", "result 0". Empty if neither is known.
// known.
struct TensorNames {
  std::vector<std::string> buffers, instructions;
};
TensorNames tensor_names(const Plan& plan);

// For every buffer, the type of the first tensor in it: "float32 (4, 32)". Empty for workspaces.
std::vector<std::string> tensor_types(const Plan& plan);

}  // namespace ebb::report
