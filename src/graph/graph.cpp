#include "ebb/graph.h"

#include <algorithm>
#include <unordered_set>

#include "ebb/node.h"

namespace ebb {

// Nodes are numbered in order of creation, inputs first, so sorting the reachable nodes gives a
// topological order.
std::vector<std::shared_ptr<Node>> topological_order(const Graph& graph) {
  std::vector<std::shared_ptr<Node>> order, stack;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](const Tensor& t) {
    if (seen.insert(t.node().get()).second) stack.push_back(t.node());
  };
  for (const Tensor& t : graph.inputs) visit(t);
  for (const Tensor& t : graph.outputs) visit(t);
  for (const Update& update : graph.updates) visit(update.target), visit(update.value);
  while (!stack.empty()) {
    order.push_back(std::move(stack.back()));
    stack.pop_back();
    const Node& node = *order.back();
    for (const Tensor& input : node.inputs()) visit(input);
  }
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return order;
}

}  // namespace ebb
