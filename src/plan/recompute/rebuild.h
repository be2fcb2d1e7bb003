// From a list of runs back to a graph in which every recomputation is a node of its own.
#pragma once

#include "ebb/plan.h"
#include "plan/recompute/simulation.h"

namespace ebb::planning {

// The same graph with one node per run. Nodes are created in the order of the runs, so that
// `topological_order` returns them in that order. `nodes` are the nodes of the model's steps.
Graph rebuild(const Graph& graph, std::span<const std::shared_ptr<Node>> nodes,
              const StepModel& model, const Runs& runs);

}  // namespace ebb::planning
