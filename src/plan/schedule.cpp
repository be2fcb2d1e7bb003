#include "plan/schedule.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "ops/collective/collective.h"
#include "plan/gathers.h"

namespace ebb::planning {
namespace {

using NodePtr = std::shared_ptr<Node>;

class EarlyUpdates {
 public:
  explicit EarlyUpdates(const Graph& graph)
      : order_(topological_order(graph)), gathers_(find_gathers(order_)) {
    for (std::size_t i = 0; i < order_.size(); ++i) index_[order_[i].get()] = i;
    const std::size_t count = order_.size();
    users_.resize(count), wanted_.resize(count), waiting_.resize(count), held_by_.resize(count),
        holds_.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      for (const Tensor& input : order_[i]->inputs()) {
        users_[at(input)].push_back(i);
        ++waiting_[i];
      }
    for (const Tensor& output : graph.outputs) wanted_[at(output)] = true;
    find_eager(graph);
    hold_until_read(graph);
  }

  std::vector<NodePtr> run() {
    for (std::size_t i = 0; i < order_.size(); ++i) offer(i);
    std::vector<NodePtr> result;
    while (result.size() < order_.size()) {
      // Two updates that read each other's variable wait for each other. Then the first of them
      // runs, and its value is copied into the variable at the end instead.
      const std::size_t next = ready_.empty() ? take_held() : take_ready();
      done_.insert(next);
      result.push_back(order_[next]);
      for (std::size_t user : users_[next]) --waiting_[user], offer(user);
      for (std::size_t update : holds_[next]) --held_by_[update], offer(update);
    }
    return gather_late(result, gathers_);
  }

 private:
  std::size_t at(const Tensor& t) const { return index_.at(t.node().get()); }

  // Eager nodes are updates and nodes that serve one update alone: its gradient, and in turn the
  // inputs of such a node that have no other reader. All of backward leads to updates, so a wider
  // rule would make every node eager. Nodes without inputs and scalars may serve several updates:
  // keeping their results costs almost no memory.
  void find_eager(const Graph& graph) {
    std::unordered_set<std::size_t> updates;
    for (const Update& update : graph.updates) updates.insert(at(update.value));
    eager_.resize(order_.size());
    for (std::size_t i = order_.size(); i-- > 0;) {
      const bool serves_one =
          (std::count_if(users_[i].begin(), users_[i].end(),
                         [&](std::size_t u) { return reads(u, i); }) == 1 ||
           (!users_[i].empty() && serves_many(*order_[i]))) &&
          std::all_of(users_[i].begin(), users_[i].end(), [&](std::size_t u) { return eager_[u]; });
      // A number that all ranks agree on, such as the loss, which updates wait for: other readers
      // do not delay it.
      const bool agreed =
          is_collective(order_[i]->op()) && serves_many(*order_[i]) &&
          std::any_of(users_[i].begin(), users_[i].end(), [&](std::size_t u) { return eager_[u]; });
      // A gradient of which this rank keeps only a range is freed at once, whichever node reads the
      // range.
      const bool shrinks = &order_[i]->op() == &reduce_scatter_op();
      eager_[i] = !wanted_[i] &&
                  (serves_one || agreed || shrinks || (updates.contains(i) && users_[i].empty()));
    }
  }

  // Whether a user of node i reads it; `own_range` only waits for its second input.
  bool reads(std::size_t user, std::size_t i) const {
    const Node& node = *order_[user];
    return &node.op() != &own_range_op() || node.inputs()[0].node() == order_[i];
  }

  static bool serves_many(const Node& node) {
    return node.inputs().empty() ||
           std::all_of(node.outputs().begin(), node.outputs().end(),
                       [](const TensorType& type) { return type.shape.elements() == 1; });
  }

  // An update waits for all other readers of its variable, so that it can overwrite the old value;
  // also for those of a tensor that is gathered from it, which may be gathered again.
  void hold_until_read(const Graph& graph) {
    std::unordered_map<std::size_t, std::vector<std::size_t>>
        readers;  // of a leaf, directly or through views
    std::vector<std::size_t> root(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const bool same = order_[i]->op().is_view() || gathers_.contains(order_[i].get());
      root[i] = same ? root[at(order_[i]->inputs()[0])] : i;
      for (const Tensor& input : order_[i]->inputs()) readers[root[at(input)]].push_back(i);
    }
    for (const Update& update : graph.updates) {
      const std::size_t node = at(update.value);
      if (!eager_[node] || !users_[node].empty()) continue;
      for (std::size_t reader : readers[at(update.target)]) {
        if (reader == node) continue;
        holds_[reader].push_back(node);
        ++held_by_[node];
      }
    }
  }

  // Eager nodes first; otherwise in topological order of the graph.
  using Entry = std::pair<bool, std::size_t>;  // (not eager, index)
  void offer(std::size_t i) {
    if (waiting_[i] == 0 && held_by_[i] == 0 && !done_.contains(i) && offered_.insert(i).second)
      ready_.emplace(!eager_[i], i);
  }
  std::size_t take_ready() {
    const std::size_t next = ready_.top().second;
    ready_.pop();
    return next;
  }
  std::size_t take_held() {
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (waiting_[i] == 0 && !done_.contains(i)) return offered_.insert(i), i;
    return 0;  // not reached: a graph has no cycles
  }

  std::vector<NodePtr> order_;
  Gathers gathers_;
  std::unordered_map<const Node*, std::size_t> index_;
  std::vector<std::vector<std::size_t>> users_,
      holds_;  // holds_[r]: updates that wait until node r has read their variable
  std::vector<bool> wanted_, eager_;
  std::vector<int> waiting_, held_by_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready_;
  std::unordered_set<std::size_t> done_, offered_;
};

}  // namespace

Order schedule(const Graph& graph, UpdateTiming timing) {
  if (timing == UpdateTiming::early) return EarlyUpdates(graph).run();
  const Order order = topological_order(graph);
  return gather_late(order, find_gathers(order));
}

}  // namespace ebb::planning
