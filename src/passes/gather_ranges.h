// Parameters that are divided among the ranks, one range per rank.
#pragma once

#include <unordered_map>

#include "ebb/graph.h"
#include "ebb/variable.h"

namespace ebb {

// The variable of this rank's range, by parameter.
using Ranges = std::unordered_map<Tensor, Variable>;

// The graph with each of these parameters gathered from the ranks' ranges before it is read. If a
// parameter is read in a smaller dtype, the range is first cast to that dtype. Same bits.
Graph gather_ranges(const Graph& graph, const Ranges& ranges, std::int64_t ranks);

}  // namespace ebb
