// Sums over the tables of a plan.
#pragma once

#include "ebb/plan.h"

namespace ebb {

// Sets peaks, categories and predicted times from buffers in their places and from instructions.
void add_up(Plan& plan);

}  // namespace ebb
