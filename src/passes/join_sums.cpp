// A bias that was added to a residual has as its gradient the sum, over rows, of a norm's gradient
// in its input: the kernel that writes those rows can sum them as it goes. On a GPU that is a walk
// over memory less; on the CPU it would gain little, and change the order of the sum for it.
#include <unordered_map>

#include "ebb/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/row_norm/row_norm.h"
#include "ops/view/view.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {

const Op& sum_op();

namespace {

using NodePtr = std::shared_ptr<Node>;

// The gradient of a norm whose rows a node sums, if that is what it does.
NodePtr summed_norm(const Node& node) {
  if (&node.op() != &sum_op() || node.device().kind != Device::Kind::cuda) return {};
  Tensor rows = node.inputs()[0];
  const std::int64_t columns = rows.rank() > 1 ? rows.shape().back() : 0;
  if (node.outputs()[0].shape != Shape{columns}) return {};
  const Axes& axes = node.attributes().as<ReduceAttributes>().axes;
  if (static_cast<int>(axes.size()) != rows.rank() - 1 || axes.back() != rows.rank() - 2) return {};
  while (&rows.node()->op() == &reshape_op()) rows = rows.node()->inputs()[0];
  const NodePtr source = rows.node();
  const bool norm = &source->op() == &layer_norm_grad_op() || &source->op() == &rms_norm_grad_op();
  return norm && rows.output() == 0 && rows.shape().back() == columns ? source : nullptr;
}

// The same gradient, and the sum as one output more.
std::vector<Tensor> with_sum(const Node& norm, const Rewriter& rewriter) {
  RowNormGradAttributes attributes = norm.attributes().as<RowNormGradAttributes>();
  attributes.sum = true;
  return rewriter.copy(norm, rewriter.inputs_of(norm), attributes);
}

}  // namespace

Graph join_sums(const Graph& graph) {
  const std::vector<NodePtr> order = topological_order(graph);
  std::unordered_map<const Node*, const Node*> norms;  // of sums
  std::unordered_map<const Node*, Tensor> sums;        // of norms
  for (const NodePtr& node : order)
    if (const NodePtr norm = summed_norm(*node)) {
      norms.emplace(node.get(), norm.get());
      sums.emplace(norm.get(), Tensor());
    }
  if (norms.empty()) return graph;
  Rewriter rewriter;
  for (const NodePtr& node : order) {
    if (node->inputs().empty()) continue;
    if (const auto norm = norms.find(node.get()); norm != norms.end()) {
      rewriter.replace(*node, {sums.at(norm->second)});
    } else if (const auto sum = sums.find(node.get()); sum != sums.end()) {
      std::vector<Tensor> outputs = with_sum(*node, rewriter);
      sum->second = outputs.back();
      rewriter.replace(*node, std::move(outputs));
    } else {
      rewriter.replace(*node, rewriter.copy(*node));
    }
  }
  return rewriter.apply(graph);
}

}  // namespace ebb
