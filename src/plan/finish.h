// The last step of planning: lanes, offsets and totals of a lowered plan.
#pragma once

#include "ebb/plan.h"

namespace ebb::planning {

// Assigns lanes, lays out the buffers of every space and sets the totals. Buffers of the arena may
// be kept longer, so that lanes need not wait for each other, while at most `limit` bytes are live,
// or the plan's own peak if that is more. `enough` is an arena size that is small enough (see
// lay_out).
void finish(Plan& plan, const PlanOptions& options, Bytes limit = {}, Bytes enough = {});

}  // namespace ebb::planning
