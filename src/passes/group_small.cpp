// A step has hundreds of updates and sums of squares of small vectors, each of which takes longer
// to launch on a GPU than to run. A group of them is one kernel launch (ops/group).
//
// Two kinds of calls are grouped: updates, whose results have no reader, and calls whose results
// have the same single reader, such as the sum that makes the norm of all gradients. So grouping
// creates no cycle and delays nothing but the grouped calls themselves.
//
// The inputs of all calls of a group are live until the last of them is computed. Each is small,
// and together they take at most `most_held`, which bounds what a group can add to peak memory.
#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "ebb/bytes.h"
#include "ebb/error.h"
#include "ebb/storage.h"
#include "ops/group/group.h"
#include "ops/leaf/leaf.h"
#include "passes/layout.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

using NodePtr = std::shared_ptr<Node>;

// Holds 16384 float32: biases and norm weights of the widest models. A larger update takes longer
// than its launch, and its gradient should be freed early.
constexpr Bytes small_tensor = 64_KiB;
// Gradients of about a hundred vectors: little compared with one activation of such a model.
constexpr Bytes most_held = 1_MiB;

// What all calls of a group have in common.
struct Kind {
  const GroupOp* op;
  Attributes in_common;
  std::vector<DType> inputs;
  const Node* reader;  // the single reader of the results; null: there is none
  Device device;
  Category category;
  bool backward;
  bool operator==(const Kind&) const = default;
};

struct SmallCall {
  NodePtr node;
  Kind kind;
  std::size_t ready;                            // position of its last input in the order
  std::vector<std::pair<Tensor, Bytes>> reads;  // buffers in the arena that it keeps live
};

struct Group {
  Kind kind;
  std::vector<NodePtr> calls;
  std::unordered_set<Tensor> reads;
  Bytes held;

  // Adds a call of the same kind if there is room; returns whether it did.
  bool take(const SmallCall& call) {
    if (!(call.kind == kind) || calls.size() == GroupOp::most_calls) return false;
    Bytes more;
    for (const auto& [tensor, bytes] : call.reads)
      if (!reads.contains(tensor)) more += bytes;
    if (!calls.empty() && held + more > most_held) return false;
    for (const auto& [tensor, bytes] : call.reads) reads.insert(tensor);
    held += more;
    calls.push_back(call.node);
    return true;
  }
};

// The path of the innermost module that contains all nodes.
std::string common_path(const std::vector<NodePtr>& nodes) {
  std::string path = nodes.front()->path();
  for (const NodePtr& node : nodes)
    while (!path.empty() && node->path() != path && !node->path().starts_with(path + '.')) {
      const std::size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
    }
  return path;
}

class GroupSmall {
 public:
  GroupSmall(const Graph& graph, Device::Kind where, std::vector<NodePtr> order)
      : graph_(graph), where_(where), order_(std::move(order)) {
    for (const NodePtr& node : order_) {
      position_.emplace(node.get(), position_.size());
      for (std::size_t o = 0; o < node->outputs().size(); ++o)
        layouts_.add({node, static_cast<int>(o)});
      for (const Tensor& input : node->inputs()) readers_[input.node().get()].push_back(node.get());
    }
    for (const Tensor& output : graph.outputs) delivered_.insert(output.node().get());
    for (const Update& update : graph.updates)
      updated_by_[update.target] = update.value.node().get();
  }

  Graph run() {
    std::vector<SmallCall> calls;
    for (const NodePtr& node : order_)
      if (auto call = small_call(node)) calls.push_back(std::move(*call));
    // In the order in which they could run, so that a group consists of neighbours.
    std::stable_sort(calls.begin(), calls.end(),
                     [](const SmallCall& a, const SmallCall& b) { return a.ready < b.ready; });
    std::vector<Group> groups;
    for (const SmallCall& call : calls) {
      const auto with_room = std::find_if(groups.rbegin(), groups.rend(),
                                          [&](Group& group) { return group.take(call); });
      if (with_room == groups.rend()) groups.emplace_back(Group{call.kind, {}, {}, {}}).take(call);
    }
    std::erase_if(groups, [](const Group& group) { return group.calls.size() < 2; });
    return groups.empty() ? graph_ : rewrite(groups);
  }

 private:
  std::optional<SmallCall> small_call(const NodePtr& node) const {
    const GroupOp* group = node->op().group();
    // Groups are not recomputed, so calls in blocks and checkpointed regions stay single.
    if (!group || node->device().kind != where_ || node->marks().block != 0 ||
        node->marks().checkpoint != 0 || !writes_its_own(*node))
      return {};
    const auto reader = reader_of(*node);
    if (!reader) return {};
    SmallCall call{
        node,
        {group, {}, {}, *reader, node->device(), node->category(), node->marks().backward},
        0,
        {}};
    std::vector<Arg> inputs;
    for (const Tensor& input : node->inputs()) {
      const Layout layout = layouts_[input];
      inputs.push_back({input.type(), layout.strides, layout.offset});
      const Tensor root = layouts_.root(input);
      const bool persistent = has_its_own_memory(root);
      if (input.type().bytes() > small_tensor ||
          (!persistent && root.type().bytes() > small_tensor))
        return {};
      if (!persistent)
        call.reads.emplace_back(root, round_up(root.type().bytes(), buffer_alignment));
      call.kind.inputs.push_back(input.dtype());
      call.ready = std::max(call.ready, position_.at(input.node().get()));
    }
    const auto in_common = group->in_common(inputs, node->attributes());
    if (!in_common) return {};
    call.kind.in_common = *in_common;
    return call;
  }

  // Whether a tensor is a variable or a constant, which is not in the arena.
  static bool has_its_own_memory(const Tensor& tensor) {
    return is_leaf(tensor.node()->op()) && &tensor.node()->op() != &input_op();
  }

  // Whether every variable that the call reads is updated by the call itself or not at all, and
  // every input that it may overwrite is such a variable. Then no call of a group accesses what
  // another one writes, and none has to wait for the update of another.
  bool writes_its_own(const Node& node) const {
    std::vector<bool> own(node.inputs().size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto found = updated_by_.find(layouts_.root(node.inputs()[i]));
      if (found == updated_by_.end()) continue;
      if (found->second != &node) return false;
      own[i] = true;
    }
    const std::vector<InPlace> pairs = node.op().in_place(node.attributes());
    return std::all_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return static_cast<std::size_t>(pair.input) >= own.size() ||
             own[static_cast<std::size_t>(pair.input)];
    });
  }

  // The single reader of a node's results: null if they have no reader, nothing if they have
  // several or are outputs of the program. A small node with one input, such as a view or a cast,
  // does not count as the reader; its own reader does.
  std::optional<const Node*> reader_of(const Node& node) const {
    const Node* at = &node;
    while (!delivered_.contains(at)) {
      const auto found = readers_.find(at);
      if (found == readers_.end())
        return at == &node ? std::optional<const Node*>(nullptr) : std::nullopt;
      if (found->second.size() != 1 || at->outputs().size() != 1 || updates(*at)) return {};
      at = found->second.front();
      if (at->inputs().size() != 1 || at->outputs()[0].bytes() > small_tensor) return at;
    }
    return {};
  }
  bool updates(const Node& node) const {
    return std::any_of(graph_.updates.begin(), graph_.updates.end(),
                       [&](const Update& update) { return update.value.node().get() == &node; });
  }

  // Keeps the old order as far as possible, with each group at the place of its last call.
  Graph rewrite(const std::vector<Group>& groups) {
    std::vector<std::size_t> place(order_.size());  // for a node, where it is made in the old order
    std::unordered_map<std::size_t, const Group*> group_at;
    for (std::size_t i = 0; i < order_.size(); ++i) place[i] = i;
    for (const Group& group : groups) {
      std::size_t last = 0;
      for (const NodePtr& call : group.calls) last = std::max(last, position_.at(call.get()));
      for (const NodePtr& call : group.calls) place[position_.at(call.get())] = last;
      group_at[last] = &group;
    }
    std::vector<std::vector<std::size_t>> users(order_.size());
    std::vector<int> waiting(order_.size());
    std::size_t left = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      left += place[i] == i ? 1 : 0;
      for (const Tensor& input : order_[i]->inputs()) {
        users[place[position_.at(input.node().get())]].push_back(place[i]);
        ++waiting[place[i]];
      }
    }
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (place[i] == i && waiting[i] == 0) ready.push(i);
    for (; !ready.empty(); --left) {
      const std::size_t next = ready.top();
      ready.pop();
      if (const auto found = group_at.find(next); found != group_at.end())
        make(*found->second);
      else if (!is_leaf(order_[next]->op()))
        rewriter_.replace(*order_[next], rewriter_.copy(*order_[next]));
      for (std::size_t user : users[next])
        if (--waiting[user] == 0) ready.push(user);
    }
    if (left != 0) throw Error("[group_small] calls of a group wait for one another");
    return rewriter_.apply(graph_);
  }

  void make(const Group& group) {
    const Node& first = *group.calls.front();
    GroupAttributes attributes{
        {}, static_cast<int>(first.inputs().size()), static_cast<int>(first.outputs().size())};
    std::vector<Tensor> inputs;
    std::vector<TensorType> types;
    for (const NodePtr& call : group.calls) {
      attributes.calls.push_back(call->attributes());
      for (const Tensor& input : call->inputs()) inputs.push_back(rewriter_[input]);
      types.insert(types.end(), call->outputs().begin(), call->outputs().end());
    }
    const auto node =
        std::make_shared<Node>(*group.kind.op, std::move(attributes), std::move(inputs),
                               std::move(types), first.device(), common_path(group.calls));
    node->set_category(first.category());
    node->set_marks(first.marks());
    int next = 0;
    for (const NodePtr& call : group.calls) {
      std::vector<Tensor> outputs;
      for (std::size_t o = 0; o < call->outputs().size(); ++o) outputs.emplace_back(node, next++);
      rewriter_.replace(*call, std::move(outputs));
    }
  }

  const Graph& graph_;
  Device::Kind where_;
  std::vector<NodePtr> order_;
  std::unordered_map<const Node*, std::size_t> position_;
  LayoutMap layouts_;
  std::unordered_map<const Node*, std::vector<const Node*>> readers_;
  std::unordered_set<const Node*> delivered_;           // outputs of the program
  std::unordered_map<Tensor, const Node*> updated_by_;  // variable → node that makes its new value
  Rewriter rewriter_;
};

}  // namespace

Graph group_small(const Graph& graph, Device::Kind where) {
  std::vector<NodePtr> order = topological_order(graph);
  const auto could_be_in_one = [&](const NodePtr& node) {
    return node->op().group() && node->device().kind == where;
  };
  if (std::none_of(order.begin(), order.end(), could_be_in_one)) return graph;
  return GroupSmall(graph, where, std::move(order)).run();
}

}  // namespace ebb
