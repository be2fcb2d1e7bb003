// From decisions back to a graph: the steps that run again become nodes of their own.
#pragma once

#include <span>

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb {

// The same graph with a node for every event, made in the order of the events: sorting by age gives
// the order in which they run. `plan` is what the model was made from.
Graph rebuild(const Graph& graph, const Plan& plan, const StepModel& model,
              std::span<const Event> events);

}  // namespace ebb
