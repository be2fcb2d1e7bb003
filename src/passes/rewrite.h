// Helpers of all passes, which build a new graph node by node from an old one.
#pragma once

#include <functional>
#include <span>
#include <unordered_map>

#include "ebb/graph.h"
#include "ebb/node.h"

namespace ebb {

// How often each tensor is read; being an output or the value of an update counts as one reading.
std::unordered_map<Tensor, int> count_readers(const Graph& graph);

std::vector<TensorType> types_of(std::span<const Tensor> tensors);

class Rewriter {
 public:
  // The new tensor for an old one; the old one if it has not been replaced.
  const Tensor& operator[](const Tensor& old) const;

  // Records the tensors that replace a node's outputs.
  void replace(const Node& old, std::vector<Tensor> outputs);

  // The new tensors that an old node reads.
  std::vector<Tensor> inputs_of(const Node& old) const;

  // A node with the same op on the new inputs, with the old node's path, marks and category.
  std::vector<Tensor> copy(const Node& old) const;
  std::vector<Tensor> copy(const Node& old, std::vector<Tensor> inputs) const;
  // The same with other attributes, which must not change the types of the outputs.
  std::vector<Tensor> copy_as(const Node& old, const Attributes& attributes) const;
  // The same with other attributes; the types of the outputs are inferred again.
  std::vector<Tensor> copy(const Node& old, std::vector<Tensor> inputs,
                           const Attributes& attributes) const;

  // The graph with its outputs and updates replaced.
  Graph apply(const Graph& graph) const;

 private:
  std::unordered_map<const Node*, std::vector<Tensor>> replaced_;
};

}  // namespace ebb
