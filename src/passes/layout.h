// Where every tensor of a graph lies: which tensor owns its buffer, and with what strides.
#pragma once

#include <unordered_map>
#include <vector>

#include "ebb/node.h"

namespace ebb {

class LayoutMap {
 public:
  // Adds a node's output; its inputs must have been added. Leaves need not be.
  void add(const Tensor& tensor);

  Layout operator[](const Tensor& tensor) const;
  Tensor root(const Tensor& tensor) const;  // the tensor whose buffer it is part of

 private:
  struct Entry {
    Tensor root;
    Layout layout;
  };
  const Entry* find(const Tensor& tensor) const;
  std::unordered_map<const Node*, std::vector<Entry>> entries_;
};

}  // namespace ebb
