// From a graph to instructions on buffers.
#pragma once

#include "ebb/plan.h"
#include "plan/schedule.h"

namespace ebb {

struct Lowered {
  Plan plan;  // instructions, buffers and lifetimes; offsets and totals are not set yet
  std::vector<std::shared_ptr<Node>> nodes;  // of the instructions, in their order
  int graph_instructions = 0;                // those after them copy values into variables
};

Lowered lower(const Graph& graph, const Order& order, const PlanOptions& options);

}  // namespace ebb
