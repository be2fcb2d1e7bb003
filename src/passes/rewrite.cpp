#include "passes/rewrite.h"

#include "ebb/ops.h"

namespace ebb {

std::unordered_map<Tensor, int> count_readers(const Graph& graph) {
  std::unordered_map<Tensor, int> readers;
  for (const auto& node : topological_order(graph))
    for (const Tensor& input : node->inputs()) ++readers[input];
  for (const Tensor& output : graph.outputs) ++readers[output];
  for (const Update& update : graph.updates) ++readers[update.value];
  return readers;
}

std::vector<TensorType> types_of(std::span<const Tensor> tensors) {
  std::vector<TensorType> types;
  for (const Tensor& tensor : tensors) types.push_back(tensor.type());
  return types;
}

const Tensor& Rewriter::operator[](const Tensor& old) const {
  const auto found = replaced_.find(old.node().get());
  return found == replaced_.end() ? old : found->second[static_cast<std::size_t>(old.output())];
}

void Rewriter::replace(const Node& old, std::vector<Tensor> outputs) {
  replaced_[&old] = std::move(outputs);
}

std::vector<Tensor> Rewriter::inputs_of(const Node& old) const {
  std::vector<Tensor> inputs;
  for (const Tensor& input : old.inputs()) inputs.push_back((*this)[input]);
  return inputs;
}

std::vector<Tensor> Rewriter::copy(const Node& old) const { return copy(old, inputs_of(old)); }

std::vector<Tensor> Rewriter::copy(const Node& old, std::vector<Tensor> inputs,
                                   const Attributes& attributes) const {
  const TraceScope path(old.path());
  const MarkScope marks(old.marks());
  std::vector<Tensor> outputs = ebb::apply(old.op(), std::move(inputs), attributes);
  outputs[0].node()->set_category(old.category());
  return outputs;
}

namespace {

std::vector<Tensor> copy_of(const Node& old, std::vector<Tensor> inputs,
                            const Attributes& attributes) {
  auto node = std::make_shared<Node>(old.op(), attributes, std::move(inputs), old.outputs(),
                                     old.device(), old.path());
  node->set_category(old.category());
  node->set_marks(old.marks());
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < node->outputs().size(); ++i)
    outputs.emplace_back(node, static_cast<int>(i));
  return outputs;
}

}  // namespace

std::vector<Tensor> Rewriter::copy(const Node& old, std::vector<Tensor> inputs) const {
  return copy_of(old, std::move(inputs), old.attributes());
}

std::vector<Tensor> Rewriter::copy_as(const Node& old, const Attributes& attributes) const {
  return copy_of(old, inputs_of(old), attributes);
}

Graph Rewriter::apply(const Graph& graph) const {
  Graph result{graph.inputs, {}, {}};
  for (const Tensor& output : graph.outputs) result.outputs.push_back((*this)[output]);
  for (const Update& update : graph.updates)
    result.updates.push_back({update.target, (*this)[update.value]});
  return result;
}

}  // namespace ebb
