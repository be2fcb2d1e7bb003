// From decisions back to a graph: the steps that run again become nodes of their own.
#pragma once

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb {

// The same graph with a node for every run, made in their order: sorting by age gives the order in
// which they run. `plan` is what the model was made from.
Graph rebuild(const Graph& graph, const Plan& plan, const StepModel& model, const Runs& runs);

}  // namespace ebb
