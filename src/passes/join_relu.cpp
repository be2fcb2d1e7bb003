// Most batch norms are followed by relu. The norm's kernel can apply it before it writes, and the
// kernel of the norm's gradient can recompute relu's mask. That saves one pass over memory in
// forward and one in backward, which then does not need relu's result.
//
// At the end of a residual block a shortcut is added before relu. On a GPU, where all of this is
// bound by memory bandwidth, the norm's kernel computes the sum as well.
#include <unordered_map>

#include "ebb/ops.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/leaf/leaf.h"
#include "ops/pointwise/pointwise.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

using NodePtr = std::shared_ptr<Node>;

// Operands of where(condition, value where it holds, value elsewhere).
enum WhereInput : int { condition, held, other };

bool is_zero(const Tensor& tensor) {
  const Node& node = *tensor.node();
  return &node.op() == &full_op() && node.attributes().as<GeneratorAttributes>().numbers.a == 0.0;
}

class JoinRelu {
 public:
  explicit JoinRelu(const Graph& graph)
      : graph_(graph), order_(topological_order(graph)), readers_(count_readers(graph)) {
    for (const NodePtr& node : order_) position_.emplace(node.get(), position_.size());
    for (const NodePtr& node : order_) match(node);
  }

  Graph run() {
    if (forward_.empty() && backward_.empty()) return graph_;
    for (const NodePtr& node : order_)
      if (!node->inputs().empty()) rewrite(*node);
    return rewriter_.apply(graph_);
  }

 private:
  void match(const NodePtr& node) {
    if (const NodePtr norm = normed(*node); norm && readers_.at(node->inputs()[0]) == 1) {
      forward_.emplace(norm.get(), Tensor{});
      joined_.emplace(node.get(), node->inputs()[0]);
    } else if (&node->op() == &relu_) {
      match_sum(*node);
    } else if (const NodePtr source = masked(*node)) {
      backward_.emplace(node.get(), source);
    }
  }

  // Matches relu(y + shortcut), where y is the result of a batch norm and `shortcut` is computed
  // before it, so that the norm's kernel can read it.
  void match_sum(const Node& relu) {
    const Tensor& sum = relu.inputs()[0];
    const Node& add = *sum.node();
    if (&add.op() != &add_ || readers_.at(sum) != 1 || add.device().kind != Device::Kind::cuda)
      return;
    const auto joins = [&](const Tensor& y, const Tensor& shortcut) {
      const Node& norm = *y.node();
      return is_norm(y) && readers_.at(y) == 1 && y.type() == sum.type() &&
             shortcut.type() == sum.type() && !shortcut.node()->op().is_view() &&
             position_.at(shortcut.node().get()) < position_.at(&norm);
    };
    for (const auto& [y, shortcut] :
         {std::pair{add.inputs()[0], add.inputs()[1]}, std::pair{add.inputs()[1], add.inputs()[0]}})
      if (joins(y, shortcut)) {
        forward_.emplace(y.node().get(), shortcut);
        joined_.emplace(&add, y);
        joined_.emplace(&relu, y);
        return;
      }
  }

  // Whether a tensor is the result of a batch norm without a fused relu or addition.
  static bool is_norm(const Tensor& y) {
    const Node& node = *y.node();
    if (&node.op() != &batch_norm_op() || y.output() != BatchNorm::y) return false;
    const auto& a = node.attributes().as<BatchNormAttributes>();
    return !a.relu && !a.added;
  }

  // The batch norm to whose result `node` applies relu, if it does.
  NodePtr normed(const Node& node) const {
    if (&node.op() != &relu_) return {};
    const Tensor& y = node.inputs()[0];
    return is_norm(y) ? y.node() : nullptr;
  }

  // The batch norm of a batch_norm_grad, if that norm is followed by relu and the incoming gradient
  // is relu's gradient, where(relu(y) <= 0, 0, g), without other readers.
  NodePtr masked(const Node& node) const {
    if (&node.op() != &batch_norm_grad_op()) return {};
    const auto& a = node.attributes().as<BatchNormGradAttributes>();
    const Tensor& passed = node.inputs()[BatchNormGrad::grad];
    const Node& select = *passed.node();
    if (a.relu || &select.op() != &where_ || readers_.at(passed) != 1) return {};
    const Node& compare = *select.inputs()[condition].node();
    if (&compare.op() != &less_equal_ || !is_zero(compare.inputs()[1]) ||
        !is_zero(select.inputs()[held]))
      return {};
    if (select.inputs()[other].type() != passed.type()) return {};
    const NodePtr norm = normed(*compare.inputs()[0].node());
    return norm && same(*norm, node) ? norm : nullptr;
  }

  // Whether `gradient` is the gradient of `norm`, so that it can recompute y from its inputs.
  static bool same(const Node& norm, const Node& gradient) {
    const auto& a = norm.attributes().as<BatchNormAttributes>();
    const auto& b = gradient.attributes().as<BatchNormGradAttributes>();
    const auto read = gradient.inputs();
    const NodePtr own = read[BatchNormGrad::mean].node();
    return a.eps == b.eps && a.weight == b.weight && a.layout == b.layout &&
           norm.inputs()[BatchNorm::x] == read[BatchNormGrad::x] && own.get() == &norm &&
           read[BatchNormGrad::mean] == Tensor(own, BatchNorm::mean) &&
           read[BatchNormGrad::var] == Tensor(own, BatchNorm::var) &&
           (!a.weight || norm.inputs()[BatchNorm::weight] == read[BatchNormGrad::weight]);
  }

  // A norm's bias, or the float32 leaf that it is cast from, which is live until backward anyway.
  static const Tensor& kept_bias(const Node& norm) {
    const Tensor& bias = norm.inputs().back();
    const Node& source = *bias.node();
    const bool narrowed = &source.op() == &cast_op() && is_half(bias.dtype()) &&
                          source.inputs()[0].dtype() == f32 &&
                          is_leaf(source.inputs()[0].node()->op());
    return narrowed ? source.inputs()[0] : bias;
  }

  void rewrite(const Node& node) {
    if (const auto done = joined_.find(&node); done != joined_.end()) {
      rewriter_.replace(node, {rewriter_[done->second]});
    } else if (const auto own = forward_.find(&node); own != forward_.end()) {
      BatchNormAttributes attributes = node.attributes().as<BatchNormAttributes>();
      std::vector<Tensor> inputs = rewriter_.inputs_of(node);
      attributes.relu = true;
      if (const Tensor& shortcut = own->second) {
        attributes.added = true;
        inputs.push_back(rewriter_[shortcut]);
      }
      rewriter_.replace(node, rewriter_.copy(node, std::move(inputs), attributes));
    } else if (const auto found = backward_.find(&node); found != backward_.end()) {
      const Node& norm = *found->second;
      const auto& a = norm.attributes().as<BatchNormAttributes>();
      BatchNormGradAttributes attributes = node.attributes().as<BatchNormGradAttributes>();
      attributes.relu = true;
      attributes.bias = a.bias;
      std::vector<Tensor> inputs = rewriter_.inputs_of(node);
      const Node& select = *node.inputs()[BatchNormGrad::grad].node();
      inputs[BatchNormGrad::grad] = rewriter_[select.inputs()[other]];
      if (a.bias) inputs.push_back(rewriter_[kept_bias(norm)]);
      rewriter_.replace(node, rewriter_.copy(node, std::move(inputs), attributes));
    } else {
      rewriter_.replace(node, rewriter_.copy(node));
    }
  }

  const Op &relu_ = pointwise_op("relu"), &add_ = pointwise_op("add"),
           &where_ = pointwise_op("where"), &less_equal_ = pointwise_op("less_equal");
  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_map<const Node*, std::size_t> position_;
  std::unordered_map<Tensor, int> readers_;            // see count_readers
  std::unordered_map<const Node*, Tensor> forward_;    // norm → shortcut that it adds, or empty
  std::unordered_map<const Node*, Tensor> joined_;     // fused relu or sum → result of its norm
  std::unordered_map<const Node*, NodePtr> backward_;  // batch_norm_grad → its norm
  Rewriter rewriter_;
};

}  // namespace

Graph join_relu(const Graph& graph) { return JoinRelu(graph).run(); }

}  // namespace ebb
