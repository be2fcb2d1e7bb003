#include "passes/gather_ranges.h"

#include <map>

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/collective/collective.h"
#include "ops/leaf/leaf.h"
#include "ops/pointwise/pointwise.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

class GatherRanges {
 public:
  GatherRanges(const Ranges& ranges, std::int64_t ranks) : ranges_(ranges), ranks_(ranks) {}

  Graph run(const Graph& graph) {
    // All nodes are copied, so that they keep their order.
    for (const auto& node : topological_order(graph)) {
      if (is_leaf(node->op())) continue;
      if (&node->op() == &cast_op() && narrows(*node)) {
        rewriter_.replace(*node, {gathered(node->inputs()[0], node->outputs()[0].dtype, *node)});
        continue;
      }
      std::vector<Tensor> inputs;
      for (const Tensor& input : node->inputs())
        inputs.push_back(ranges_.contains(input) ? gathered(input, input.dtype(), *node)
                                                 : rewriter_[input]);
      rewriter_.replace(*node, rewriter_.copy(*node, std::move(inputs)));
    }
    return rewriter_.apply(graph);
  }

 private:
  bool narrows(const Node& cast) const {
    const Tensor& input = cast.inputs()[0];
    return ranges_.contains(input) && size_of(cast.outputs()[0].dtype) < size_of(input.dtype());
  }

  // Gathered once for each dtype; the planner decides how long it stays.
  Tensor gathered(const Tensor& whole, DType dtype, const Node& reader) {
    Tensor& result = gathered_[{whole.node()->id(), dtype}];
    if (result) return result;
    const TraceScope path(whole.node()->path());
    const MarkScope marks(reader.marks());
    const Variable& range = ranges_.at(whole);
    const Tensor flat = reshape(range, {range.shape().elements()});
    result = all_gather(cast(flat, dtype), whole.shape(), ranks_);
    result.node()->set_category(Category::weights);
    return result;
  }

  const Ranges& ranges_;
  std::int64_t ranks_;
  Rewriter rewriter_;
  std::map<std::pair<std::uint64_t, DType>, Tensor> gathered_;
};

}  // namespace

Graph gather_ranges(const Graph& graph, const Ranges& ranges, std::int64_t ranks) {
  return GatherRanges(ranges, ranks).run(graph);
}

}  // namespace ebb
