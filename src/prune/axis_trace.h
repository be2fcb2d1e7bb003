// Follows the axes of variables through a graph: which index of which axis of a value comes from
// which class of indices. Ops without a rule fix all axes that they read.
#pragma once

#include <unordered_map>
#include <vector>

#include "ebb/node.h"
#include "prune/classes.h"

namespace ebb::prune {

// An axis of a value that a product or a convolution sums over.
struct SummedAxis {
  Tensor value;
  int axis = 0;
};

class AxisTrace {
 public:
  // All nodes of a graph, inputs before users. The axes of `outputs` cannot be removed.
  AxisTrace(const std::vector<std::shared_ptr<Node>>& nodes, const std::vector<Tensor>& outputs);

  const AxisLabels& labels(const Tensor& value, int axis) const {
    return values_.at(value)[static_cast<std::size_t>(axis)];
  }
  bool has(const Tensor& value) const { return values_.contains(value); }
  Classes& classes() { return classes_; }
  const std::vector<SummedAxis>& summed() const { return summed_; }

 private:
  using Axes = std::vector<AxisLabels>;  // of one value

  void visit(const Node& node);
  Axes& set(const Node& node, int output, Axes axes);
  const Axes& in(const Node& node, int i) const {
    return values_.at(node.inputs()[static_cast<std::size_t>(i)]);
  }
  void tie_all(const AxisLabels& a, const AxisLabels& b) { classes_.tie(a, b); }

  void leaf(const Node& node);
  void elementwise(const Node& node);
  void matmul(const Node& node);
  void conv2d(const Node& node);
  void attention(const Node& node);
  void rotary(const Node& node);
  void row_norm(const Node& node);
  void embedding(const Node& node);
  void reshape(const Node& node);
  void permute(const Node& node);
  void slice(const Node& node);
  void concat(const Node& node);
  void reduce(const Node& node);
  void pool(const Node& node);
  void unknown(const Node& node);

  // The labels of axes [first, last) of a value, element by element; empty if all are fixed.
  AxisLabels flattened(const Axes& axes, const Shape& shape, int first, int last);
  // The labels of axes [first, last) of `shape` for elements with these labels: the first axis
  // longer than 1 carries them, the others are fixed.
  void unflatten(const AxisLabels& elements, const Shape& shape, int first, int last, Axes& axes);

  Classes classes_;
  std::unordered_map<Tensor, Axes> values_;
  std::vector<SummedAxis> summed_;
};

}  // namespace ebb::prune
