// Measures the rates of a device of this machine, from which the planner predicts time. Takes about
// a second.
#pragma once

#include "ebb/rates.h"

namespace ebb {

Rates measure_rates(Device device = device::cpu);

}  // namespace ebb
