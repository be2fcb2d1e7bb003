// Plans that use more tiers of memory than the device's own. What is outside the device is one more
// choice next to recomputation: each candidate placement becomes a graph with copies in it
// (with_transfers), which the planner plans like any other.
#pragma once

#include "ebb/plan.h"
#include "plan/planner.h"

namespace ebb::planning {

// Whether the options allow other tiers, or some of the graph's variables are there already.
bool uses_tiers(const Planner& resident);

// The fastest plan found for the budgets of all tiers, or the smallest budget of the device that
// can be kept. `resident` has no copies; its plan is one of those compared, unless variables are
// elsewhere already. Neither a plan nor a budget if all seem to take `faster_than` milliseconds or
// more.
PlanResult plan_in_tiers(Planner& resident, double faster_than);

// The smallest budget of the device, within the budgets of the other tiers.
KeptBudget least_in_tiers(Planner& resident);

}  // namespace ebb::planning
