// If q, k and v are slices of one matrix product, as in GPT-2, backward computes three gradients
// and concatenates them. attention_grad can write the concatenated gradient itself.
#include <unordered_map>

#include "ebb/ops.h"
#include "ops/attention/attention.h"
#include "ops/concat/concat.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

using NodePtr = std::shared_ptr<Node>;

class PackGradients {
 public:
  explicit PackGradients(const Graph& graph)
      : graph_(graph), order_(topological_order(graph)), readers_(count_readers(graph)) {
    for (const NodePtr& node : order_)
      if (NodePtr attention = joined_attention(*node)) joined_.emplace(node.get(), attention);
  }

  Graph run() {
    if (joined_.empty()) return graph_;
    for (const NodePtr& node : order_) {
      if (node->inputs().empty()) continue;
      const auto found = joined_.find(node.get());
      if (found == joined_.end())
        rewriter_.replace(*node, rewriter_.copy(*node));
      else
        pack(*node, *found->second);
    }
    return rewriter_.apply(graph_);
  }

 private:
  // The attention_grad whose gradients of q, k and v the concat joins for each token, or null.
  NodePtr joined_attention(const Node& concat) const {
    if (&concat.op() != &concat_op() || concat.inputs().size() != 3) return {};
    NodePtr attention;
    for (int i = 0; i < 3; ++i) {
      const Tensor source = source_of(concat.inputs()[static_cast<std::size_t>(i)]);
      if (!source || &source.node()->op() != &attention_grad_op() || source.output() != i ||
          (attention && source.node() != attention))
        return {};
      attention = source.node();
    }
    const Shape &dq = attention->outputs()[0].shape, &dk = attention->outputs()[1].shape;
    std::int64_t rows = 1;  // of the concat: one per token, that is batch × sequence
    for (int axis = 0; axis < concat.attributes().as<ConcatAttributes>().axis; ++axis)
      rows *= concat.outputs()[0].shape[axis];
    return dq[1] == dk[1] && rows == dq[0] * dq[1] ? attention : nullptr;
  }

  // The tensor that `tensor` is a view of, if it has all elements in the same order and neither it
  // nor the views have other readers; empty otherwise.
  Tensor source_of(const Tensor& tensor) const {
    std::vector<Tensor> views;
    Tensor source = tensor;
    while (readers_.at(source) == 1 && source.node()->op().is_view()) {
      views.push_back(source);
      source = source.node()->inputs()[0];
    }
    if (readers_.at(source) != 1) return {};
    Layout layout{contiguous_strides(source.shape()), 0};
    for (auto view = views.rbegin(); view != views.rend(); ++view) {
      const Node& node = *view->node();
      const auto seen =
          node.op().view(node.inputs()[0].type(), layout, view->output(), node.attributes());
      if (!seen) return {};
      layout = *seen;
    }
    const bool all = tensor.shape().elements() == source.shape().elements();
    return all && layout.offset == 0 && is_contiguous(tensor.shape(), layout.strides) ? source
                                                                                      : Tensor{};
  }

  void pack(const Node& concat, const Node& attention) {
    AttentionGradAttributes attributes = attention.attributes().as<AttentionGradAttributes>();
    attributes.packed = true;
    const Tensor packed =
        rewriter_.copy(attention, rewriter_.inputs_of(attention), attributes).front();
    packed.node()->set_category(concat.category());
    rewriter_.replace(concat, {reshape(packed, concat.outputs()[0].shape)});
  }

  const Graph& graph_;
  std::vector<NodePtr> order_;
  std::unordered_map<Tensor, int> readers_;          // see count_readers
  std::unordered_map<const Node*, NodePtr> joined_;  // concat → attention_grad
  Rewriter rewriter_;
};

}  // namespace

Graph pack_gradients(const Graph& graph) { return PackGradients(graph).run(); }

}  // namespace ebb
