// Lowering: from a graph to instructions that read and write buffers.
#pragma once

#include "ebb/plan.h"
#include "plan/schedule.h"

namespace ebb::planning {

struct Lowered {
  Plan plan;  // instructions, buffers and live ranges; offsets and totals are not set yet
  std::vector<std::shared_ptr<Node>> nodes;  // the node of each instruction
  int graph_instructions = 0;  // instructions after this many copy new values into variables
};

Lowered lower(const Graph& graph, const Order& order, const PlanOptions& options);

}  // namespace ebb::planning
