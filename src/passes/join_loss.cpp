// Most losses end in a mean, whose gradient for each row is known before the losses are. Then one
// pass over the logits computes the losses and the gradients.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {

namespace {

using NodePtr = std::shared_ptr<Node>;

class JoinLoss {
 public:
  explicit JoinLoss(const Graph& graph) : graph_(graph), order_(topological_order(graph)) {
    for (const NodePtr& node : order_)
      for (const Tensor& input : node->inputs()) readers_[input].push_back(node);
    for (const Tensor& output : graph.outputs) readers_[output].push_back(nullptr);
    for (const Update& update : graph.updates) readers_[update.value].push_back(nullptr);
    for (const NodePtr& node : order_)
      if (&node->op() == &linear_cross_entropy_op())
        if (NodePtr backward = partner(node)) backward_[node.get()] = std::move(backward);
  }

  Graph run() {
    if (backward_.empty()) return graph_;
    for (const NodePtr& node : order_) rewrite(node);
    return rewriter_.apply(graph_);
  }

 private:
  // The only reader of a tensor, if it is a node of this op.
  NodePtr only_reader(const Tensor& tensor, const Op& op) const {
    const auto found = readers_.find(tensor);
    if (found == readers_.end() || found->second.size() != 1) return {};
    const NodePtr& reader = found->second.front();
    return reader && &reader->op() == &op ? reader : nullptr;
  }

  // The backward op that can be merged with a forward op, if there is one: it must be the only
  // reader of the logsumexp, and the gradient of the losses must not depend on any loss.
  NodePtr partner(const NodePtr& forward) const {
    const NodePtr passed =
        only_reader(Tensor(forward, LinearCrossEntropy::logsumexp), stop_gradient_op());
    if (!passed) return {};
    const NodePtr backward = only_reader(Tensor(passed, 0), linear_cross_entropy_grad_op());
    if (!backward ||
        !std::equal(forward->inputs().begin(), forward->inputs().end(), backward->inputs().begin()))
      return {};
    for (const NodePtr& node : above(backward->inputs()[LinearCrossEntropyGrad::grad]))
      if (&node->op() == &linear_cross_entropy_op()) return {};
    return backward;
  }

  static std::vector<NodePtr> above(const Tensor& tensor) {
    return topological_order(Graph{{}, {tensor}, {}});
  }

  void rewrite(const NodePtr& node) {
    if (node->inputs().empty() || !done_.insert(node.get()).second) return;
    const auto found = backward_.find(node.get());
    if (found == backward_.end()) return rewriter_.replace(*node, rewriter_.copy(*node));
    join(*node, *found->second);
  }

  void join(const Node& forward, const Node& backward) {
    const Tensor& gradient = backward.inputs()[LinearCrossEntropyGrad::grad];
    for (const NodePtr& node : above(gradient)) rewrite(node);
    std::vector<Tensor> inputs = rewriter_.inputs_of(forward);
    inputs.push_back(rewriter_[gradient]);
    std::vector<TensorType> types = {forward.outputs()[LinearCrossEntropy::losses]};
    types.insert(types.end(), backward.outputs().begin(), backward.outputs().end());
    const Op& op = linear_cross_entropy_joint_op();
    const auto joint =
        std::make_shared<Node>(op, first_variant(op, inputs, backward), std::move(inputs), types,
                               backward.device(), forward.path());
    joint->set_category(backward.category());
    joint->set_marks(forward.marks());
    std::vector<Tensor> gradients;
    for (std::size_t i = 1; i < types.size(); ++i)
      gradients.emplace_back(joint, static_cast<int>(i));
    // Only ops that are removed read the logsumexp (output 1), so any tensor may take its place.
    rewriter_.replace(forward, {Tensor(joint, 0), Tensor(joint, 0)});
    rewriter_.replace(backward, std::move(gradients));
    done_.insert(&backward);
  }

  static Attributes first_variant(const Op& op, const std::vector<Tensor>& inputs,
                                  const Node& backward) {
    const LinearCrossEntropyJointAttributes joint{
        backward.attributes().as<LinearCrossEntropyGradAttributes>()};
    return op.variants(types_of(inputs), backward.device(), joint).front().attributes;
  }

  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_map<Tensor, std::vector<NodePtr>> readers_;  // a null reader is the graph itself
  std::unordered_map<const Node*, NodePtr> backward_;         // by forward op, if it can be merged
  std::unordered_set<const Node*> done_;
  Rewriter rewriter_;
};

}  // namespace

Graph join_loss(const Graph& graph) { return JoinLoss(graph).run(); }

}  // namespace ebb
