// For every tensor of a graph, the tensor that owns its buffer, and its strides and offset there.
#pragma once

#include <unordered_map>
#include <vector>

#include "ebb/node.h"

namespace ebb {

class LayoutMap {
 public:
  // Adds all outputs of the tensor's node; its inputs must have been added, except leaves.
  void add(const Tensor& tensor);

  Layout operator[](const Tensor& tensor) const;
  Tensor root(const Tensor& tensor) const;  // the tensor that owns its buffer

 private:
  struct Entry {
    Tensor root;
    Layout layout;
  };
  const Entry* find(const Tensor& tensor) const;
  std::unordered_map<const Node*, std::vector<Entry>> entries_;
};

}  // namespace ebb
