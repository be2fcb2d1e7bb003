// The order in which a graph's nodes run.
#pragma once

#include <memory>
#include <vector>

#include "ebb/plan.h"

namespace ebb::planning {

using Order = std::vector<std::shared_ptr<Node>>;

// All nodes in topological order. With UpdateTiming::early, a node whose only results are updates
// runs as soon as its inputs exist and all other readers of the old values have run. Nodes that
// serve one such node alone, such as the gradient of a parameter, also run as soon as they can: a
// gradient is then freed before the next one is computed.
Order schedule(const Graph& graph, UpdateTiming timing);

}  // namespace ebb::planning
