// The last step of planning: lanes, offsets and totals of a lowered plan.
#pragma once

#include "ebb/plan.h"

namespace ebb::planning {

// Assigns lanes, lays out the buffers of every space and adds up. `limit`: up to how many live
// bytes buffers of the arena may be kept longer, so that lanes need not wait for each other; the
// plan's own peak if that is more. `enough`: an arena of this size is small enough (see lay_out).
void finish(Plan& plan, const PlanOptions& options, Bytes limit = {}, Bytes enough = {});

}  // namespace ebb::planning
