// Binds the kernels of a plan's instructions.
#pragma once

#include "ebb/plan.h"

namespace ebb {

// The instruction's kernel, bound for one purpose. Purpose::run and Purpose::tune need the device;
// Purpose::describe does not, and its result gives only workspace and time.
Kernel kernel_of(const Plan& plan, const Instruction& instruction, Purpose purpose,
                 TuningUse& tuning);

}  // namespace ebb
