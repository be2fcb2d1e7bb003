// Measuring how fast this machine is, for the planner's clock. Takes about a second.
#pragma once

#include "ebb/rates.h"

namespace ebb {

Rates measure_rates();

}  // namespace ebb
