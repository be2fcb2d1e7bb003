// What every pass builds on: a new graph, node by node, from an old one.
#pragma once

#include <functional>
#include <unordered_map>

#include "ebb/graph.h"
#include "ebb/node.h"

namespace ebb {

class Rewriter {
 public:
  // The new tensor for an old one.
  const Tensor& operator[](const Tensor& old) const;

  // Records what replaces a node's outputs.
  void replace(const Node& old, std::vector<Tensor> outputs);

  // The same op on the new inputs, with the old node's path and category.
  std::vector<Tensor> copy(const Node& old) const;
  std::vector<Tensor> copy(const Node& old, std::vector<Tensor> inputs) const;

  // The graph's roots, replaced.
  Graph apply(const Graph& graph) const;

 private:
  std::unordered_map<const Node*, std::vector<Tensor>> replaced_;
};

}  // namespace ebb
