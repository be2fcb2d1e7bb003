// Sums over the tables of a plan.
#pragma once

#include "ebb/plan.h"

namespace ebb::planning {

// Sets peaks, bytes by category and predicted times of a plan whose buffers have their offsets.
void add_up(Plan& plan);

}  // namespace ebb::planning
