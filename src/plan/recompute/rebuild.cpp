#include "plan/recompute/rebuild.h"

#include <unordered_map>

#include "ops/leaf/leaf.h"
#include "passes/rewrite.h"

namespace ebb::planning {
namespace {

class Rebuild {
 public:
  Rebuild(std::span<const std::shared_ptr<Node>> nodes, const StepModel& model)
      : nodes_(nodes), model_(model) {}

  Graph run(const Graph& graph, const Runs& runs) {
    for (int step : runs)
      if (step < model_.graph_steps) add(step);
    Graph result{graph.inputs, {}, {}};
    for (const Tensor& output : graph.outputs) result.outputs.push_back(first_.at(output));
    for (const Update& update : graph.updates) {
      const auto found = first_.find(update.value);  // not there if a leaf is the new value
      result.updates.push_back(
          {update.target, found == first_.end() ? update.value : found->second});
    }
    return result;
  }

 private:
  void add(int step) {
    const auto& node = nodes_[static_cast<std::size_t>(step)];
    std::vector<Tensor> inputs;
    for (const Tensor& input : node->inputs()) inputs.push_back(current(input));
    const std::vector<Tensor> outputs = Rewriter().copy(*node, std::move(inputs));
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const Tensor before(node, static_cast<int>(o));
      const int value = model_.steps[static_cast<std::size_t>(step)].outputs[o];
      const bool first = first_.try_emplace(before, outputs[o]).second;
      if (first || droppable(model_, value)) current_[before] = outputs[o];
    }
  }

  // The newest copy of a tensor. A view is made again when its source has a newer copy.
  Tensor current(const Tensor& old) {
    if (is_leaf(old.node()->op())) return old;
    if (!old.node()->op().is_view()) return current_.at(old);
    const Tensor source = current(old.node()->inputs()[0]);
    View& view = views_[old.node().get()];
    if (!(view.source == source)) view = {source, Rewriter().copy(*old.node(), {source})};
    return view.outputs[static_cast<std::size_t>(old.output())];
  }

  struct View {
    Tensor source;
    std::vector<Tensor> outputs;
  };
  std::span<const std::shared_ptr<Node>> nodes_;  // the node of each step
  const StepModel& model_;
  std::unordered_map<Tensor, Tensor> first_, current_;
  std::unordered_map<const Node*, View> views_;
};

}  // namespace

Graph rebuild(const Graph& graph, std::span<const std::shared_ptr<Node>> nodes,
              const StepModel& model, const Runs& runs) {
  return Rebuild(nodes, model).run(graph, runs);
}

}  // namespace ebb::planning
