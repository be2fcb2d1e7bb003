// Parameters of which every rank has a range.
#pragma once

#include <unordered_map>

#include "ebb/graph.h"
#include "ebb/variable.h"

namespace ebb {

// By the parameter: the variable of this rank's range.
using Ranges = std::unordered_map<Tensor, Variable>;

// The graph with each of these parameters gathered from the ranks' ranges before it is read. If a
// parameter is read in a smaller dtype, the range is cast and gathered in that one. Same bits.
Graph gather_ranges(const Graph& graph, const Ranges& ranges, std::int64_t ranks);

}  // namespace ebb
