#include <unordered_map>
#include <unordered_set>

#include "ebb/ops.h"
#include "ops/leaf/leaf.h"
#include "passes/layout.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

namespace ebb {
namespace {

class CopyInsertion {
 public:
  explicit CopyInsertion(const Graph& graph) : graph_(graph) {}

  Graph run() {
    for (const auto& node : topological_order(graph_)) {
      if (is_leaf(node->op())) continue;
      std::vector<Tensor> inputs;
      for (std::size_t i = 0; i < node->inputs().size(); ++i) {
        const Tensor input = rewriter_[node->inputs()[i]];
        inputs.push_back(takes(*node, static_cast<int>(i), input) ? input : copied(input, *node));
      }
      std::vector<Tensor> outputs = rewriter_.copy(*node, std::move(inputs));
      for (const Tensor& output : outputs) layouts_.add(output);
      rewriter_.replace(*node, std::move(outputs));
    }
    Graph result = rewriter_.apply(graph_);
    std::unordered_set<Tensor> owned;  // tensors whose buffer an output or update already uses
    const auto own = [&](Tensor& t, const Node* allowed) {
      const bool has_buffer = layouts_.root(t) == t && !is_leaf(t.node()->op());
      if ((!has_buffer || !owned.insert(t).second) && t.node().get() != allowed) t = contiguous(t);
    };
    for (Tensor& output : result.outputs) own(output, nullptr);
    for (Update& update : result.updates) own(update.value, update.target.node().get());
    return result;
  }

 private:
  bool takes(const Node& node, int index, const Tensor& input) const {
    const Layout& layout = layouts_[input];
    if (!node.op().is_view())
      return node.op().accepts({input.type(), layout.strides}, index, node.attributes());
    for (std::size_t o = 0; o < node.outputs().size(); ++o)
      if (!node.op().view(input.type(), layout, static_cast<int>(o), node.attributes()))
        return false;
    return true;
  }

  // All readers of a tensor share one copy.
  Tensor copied(const Tensor& input, const Node& reader) {
    if (const auto found = copies_.find(input); found != copies_.end()) return found->second;
    const TraceScope path(reader.path());
    const Tensor copy = contiguous(input);
    copy.node()->set_category(input.node()->category() == Category::gradients
                                  ? Category::gradients
                                  : Category::activations);
    copy.node()->set_marks(reader.marks());
    layouts_.add(copy);
    copies_.emplace(input, copy);
    return copy;
  }

  const Graph& graph_;
  Rewriter rewriter_;
  LayoutMap layouts_;
  std::unordered_map<Tensor, Tensor> copies_;
};

}  // namespace

Graph insert_copies(const Graph& graph) { return CopyInsertion(graph).run(); }

}  // namespace ebb
