// The order in which a graph's nodes run.
#pragma once

#include <memory>
#include <vector>

#include "ebb/plan.h"

namespace ebb {

using Order = std::vector<std::shared_ptr<Node>>;

// Every node, inputs before users. With UpdateTiming::early, a node whose results are only updates
// of variables runs as soon as its inputs exist and everyone else has read the old values; so does
// what is computed for such nodes alone, gradients of parameters among it. A gradient is then gone
// before the next one is made.
Order schedule(const Graph& graph, UpdateTiming timing);

}  // namespace ebb
