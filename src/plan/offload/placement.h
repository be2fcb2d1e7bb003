// Which tensors are outside the device, and the graph that moves them there and back.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ebb/graph.h"
#include "ebb/tier.h"
#include "plan/schedule.h"

namespace ebb::planning {

struct Placement {
  // A result of forward that is not on the device between two of its readers.
  struct Gap {
    Tier tier = Tier::host;
    const Node* until = nullptr;  // the first reader after the gap
  };
  std::unordered_map<const Node*, Tier> variables;  // those outside the device between their uses
  std::unordered_map<Tensor, Gap> activations;
  // For variables, the readers that need them after a long time: they are fetched again for these.
  std::unordered_map<const Node*, std::unordered_set<const Node*>> fetched_again;

  bool empty() const { return variables.empty() && activations.empty(); }
};

// A graph, and the order of its nodes.
struct OrderedGraph {
  Graph graph;
  Order order;
  std::unordered_map<const Node*, const Node*> origins = {};  // for its nodes, those they stand for
};

// The graph with a store after every node whose result leaves the device, and a fetch before the
// first reader of what is not there. Values do not change. `order` is an order of `graph`; the
// result has the same one. A fetch is an ordinary node that can run again: where memory is short,
// the search that decides about recomputation also fetches more often.
OrderedGraph with_transfers(const Graph& graph, const Order& order, const Placement& placement);

}  // namespace ebb::planning
