// From a graph to instructions on buffers.
#pragma once

#include "ebb/plan.h"

namespace ebb {

// Fills in instructions, buffers and lifetimes; offsets and totals are not set yet.
Plan lower(const Graph& graph, const PlanOptions& options);

}  // namespace ebb
