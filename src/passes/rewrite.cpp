#include "passes/rewrite.h"

namespace ebb {

const Tensor& Rewriter::operator[](const Tensor& old) const {
  const auto found = replaced_.find(old.node().get());
  return found == replaced_.end() ? old : found->second[static_cast<std::size_t>(old.output())];
}

void Rewriter::replace(const Node& old, std::vector<Tensor> outputs) {
  replaced_[&old] = std::move(outputs);
}

std::vector<Tensor> Rewriter::copy(const Node& old) const {
  std::vector<Tensor> inputs;
  for (const Tensor& input : old.inputs()) inputs.push_back((*this)[input]);
  return copy(old, std::move(inputs));
}

std::vector<Tensor> Rewriter::copy(const Node& old, std::vector<Tensor> inputs) const {
  auto node = std::make_shared<Node>(old.op(), old.attributes(), std::move(inputs), old.outputs(),
                                     old.device(), old.path());
  node->set_category(old.category());
  node->set_marks(old.marks());
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < node->outputs().size(); ++i)
    outputs.emplace_back(node, static_cast<int>(i));
  return outputs;
}

Graph Rewriter::apply(const Graph& graph) const {
  Graph result{graph.inputs, {}, {}};
  for (const Tensor& output : graph.outputs) result.outputs.push_back((*this)[output]);
  for (const Update& update : graph.updates)
    result.updates.push_back({update.target, (*this)[update.value]});
  return result;
}

}  // namespace ebb
