// The gradient of a bias that was added to a residual stream is the sum over rows of a norm's
// gradient with respect to its input. The kernel that writes those rows can also sum them. On a GPU
// that saves one pass over memory; on the CPU it would gain little and change the order of the sum.
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

// The norm gradient whose rows `node` sums, or null if it does not do that.
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

// The outputs of a copy of the norm gradient that has the sum as an additional last output.
std::vector<Tensor> with_sum(const Node& norm, const Rewriter& rewriter) {
  RowNormGradAttributes attributes = norm.attributes().as<RowNormGradAttributes>();
  attributes.sum = true;
  return rewriter.copy(norm, rewriter.inputs_of(norm), attributes);
}

}  // namespace

Graph join_sums(const Graph& graph) {
  const std::vector<NodePtr> order = topological_order(graph);
  std::unordered_map<const Node*, const Node*> norms;  // sum → norm gradient
  std::unordered_map<const Node*, Tensor> sums;        // norm gradient → its new output
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
