#include "plan/offload/placement.h"

#include <fmt/core.h>

#include <utility>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ops/leaf/leaf.h"
#include "ops/transfer/transfer.h"
#include "passes/rewrite.h"

namespace ebb::planning {
namespace {

class Insertion {
 public:
  Insertion(const Graph& graph, const Placement& placement) : graph_(graph), placement_(placement) {
    for (const Update& update : graph.updates) {
      if (placement.variables.contains(update.value.node().get()))
        throw ValueError(
            fmt::format("[compile] \"{}\", the new value of \"{}\", must not be outside the device",
                        update.value.path(), update.target.path()));
      if (const auto found = placement.variables.find(update.target.node().get());
          found != placement.variables.end()) {
        const Op& op = update.value.node()->op();
        if (is_leaf(op) || op.is_view() ||
            !stored_update_.try_emplace(update.value, found->second).second)
          throw ValueError(fmt::format(
              "[compile] \"{}\" is in the tier {}: its new value must be the result of one op that "
              "is no other variable's new value",
              update.target.path(), name(found->second)));
      }
    }
  }

  OrderedGraph run(const Order& order) {
    for (const auto& node : order)
      if (is_leaf(node->op()))
        order_.push_back(node);
      else if (!node->op().is_view())
        add(node);
    Graph result{graph_.inputs, {}, {}};
    for (const Tensor& output : graph_.outputs) result.outputs.push_back(first_.at(output));
    for (const Update& update : graph_.updates) {
      const bool away = placement_.variables.contains(update.target.node().get());
      const auto first = first_.find(update.value);  // not there if a leaf is the new value
      result.updates.push_back({update.target, away                    ? updates_.at(update.value)
                                               : first == first_.end() ? update.value
                                                                       : first->second});
    }
    return {std::move(result), std::move(order_), std::move(origins_)};
  }

 private:
  void add(const std::shared_ptr<Node>& node) {
    std::vector<Tensor> inputs;
    for (const Tensor& input : node->inputs()) inputs.push_back(current(input, *node));
    const std::vector<Tensor> outputs = keep(Rewriter().copy(*node, std::move(inputs)));
    origins_[outputs[0].node().get()] = node.get();
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      const Tensor old(node, static_cast<int>(o));
      first_[old] = current_[old] = outputs[o];
      if (const auto found = stored_update_.find(old); found != stored_update_.end())
        updates_[old] = transfer(store_op(), outputs[o], found->second, *node);
      if (const auto found = placement_.activations.find(old);
          found != placement_.activations.end())
        stored_[old] = transfer(store_op(), outputs[o], found->second.tier, *node);
    }
  }

  // The tensor that `reader` reads for an old one. Views are made again when their source changes.
  Tensor current(const Tensor& old, const Node& reader) {
    if (old.node()->op().is_view()) {
      const Tensor source = current(old.node()->inputs()[0], reader);
      View& view = views_[old.node().get()];
      if (!(view.source == source)) view = {source, keep(Rewriter().copy(*old.node(), {source}))};
      return view.outputs[static_cast<std::size_t>(old.output())];
    }
    if (is_leaf(old.node()->op())) {
      const auto away = placement_.variables.find(old.node().get());
      if (away == placement_.variables.end()) return old;
      Tensor& fetched = current_[old];
      const auto again = placement_.fetched_again.find(old.node().get());
      const bool wanted_again = again != placement_.fetched_again.end() &&
                                again->second.contains(&reader) &&
                                std::exchange(fetched_for_[old.node().get()], &reader) != &reader;
      if (!fetched || wanted_again) fetched = transfer(fetch_op(), old, away->second, reader);
      return fetched;
    }
    if (const auto gap = placement_.activations.find(old); gap != placement_.activations.end() &&
                                                           gap->second.until == &reader &&
                                                           current_.at(old) == first_.at(old))
      current_.at(old) = transfer(fetch_op(), stored_.at(old), gap->second.tier, reader);
    return current_.at(old);
  }

  Tensor transfer(const Op& op, const Tensor& tensor, Tier tier, const Node& beside) {
    const TraceScope path(tensor.node()->path());
    const MarkScope marks(beside.marks());
    const std::vector<Tensor> made = keep(apply(op, {tensor}, TransferAttributes{tier}));
    made[0].node()->set_category(tensor.node()->category());
    return made[0];
  }

  std::vector<Tensor> keep(std::vector<Tensor> made) {
    order_.push_back(made[0].node());
    return made;
  }

  struct View {
    Tensor source;
    std::vector<Tensor> outputs;
  };
  const Graph& graph_;
  const Placement& placement_;
  Order order_;
  std::unordered_map<Tensor, Tier> stored_update_;
  std::unordered_map<Tensor, Tensor> first_, current_, stored_, updates_;
  std::unordered_map<const Node*, const Node*> fetched_for_;  // the reader fetched for last
  std::unordered_map<const Node*, View> views_;
  std::unordered_map<const Node*, const Node*> origins_;
};

}  // namespace

OrderedGraph with_transfers(const Graph& graph, const Order& order, const Placement& placement) {
  return Insertion(graph, placement).run(order);
}

}  // namespace ebb::planning
