// What every pass builds on: a new graph, node by node, from an old one.
#pragma once

#include <functional>
#include <span>
#include <unordered_map>

#include "ebb/graph.h"
#include "ebb/node.h"

namespace ebb {

// How often each tensor of a graph is read; the graph itself counts as one reader of its results.
std::unordered_map<Tensor, int> count_readers(const Graph& graph);

std::vector<TensorType> types_of(std::span<const Tensor> tensors);

class Rewriter {
 public:
  // The new tensor for an old one.
  const Tensor& operator[](const Tensor& old) const;

  // Records what replaces a node's outputs.
  void replace(const Node& old, std::vector<Tensor> outputs);

  // The new tensors that an old node reads.
  std::vector<Tensor> inputs_of(const Node& old) const;

  // The same op on the new inputs, with the old node's path and category.
  std::vector<Tensor> copy(const Node& old) const;
  std::vector<Tensor> copy(const Node& old, std::vector<Tensor> inputs) const;
  // The same with other attributes that leave the outputs' types as they are.
  std::vector<Tensor> copy_as(const Node& old, const Attributes& attributes) const;
  // The same with other attributes, from which the outputs follow.
  std::vector<Tensor> copy(const Node& old, std::vector<Tensor> inputs,
                           const Attributes& attributes) const;

  // The graph's roots, replaced.
  Graph apply(const Graph& graph) const;

 private:
  std::unordered_map<const Node*, std::vector<Tensor>> replaced_;
};

}  // namespace ebb
