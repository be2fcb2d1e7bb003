// What an instruction of a plan asks of its op: the kernel, and the workspace that it will need.
#pragma once

#include "ebb/plan.h"

namespace ebb {

// Bytes of scratch memory that the instruction's kernel needs.
Bytes workspace_of(const Plan& plan, const Instruction& instruction);

// The kernel itself. A device that has to be there must be there.
Kernel bind(const Plan& plan, const Instruction& instruction);

}  // namespace ebb
