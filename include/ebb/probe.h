// Measuring how fast a device of this machine is, for the planner's clock. Takes about a second.
#pragma once

#include "ebb/rates.h"

namespace ebb {

Rates measure_rates(Device device = device::cpu);

}  // namespace ebb
