// From decisions back to a graph: the steps that run again become nodes of their own.
#pragma once

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb {

// The same graph with a node for every run, made in their order: sorting by age gives the order in
// which they run. `nodes` are those of the model's steps.
Graph rebuild(const Graph& graph, std::span<const std::shared_ptr<Node>> nodes,
              const StepModel& model, const Runs& runs);

}  // namespace ebb
