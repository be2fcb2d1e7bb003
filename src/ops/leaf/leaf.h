// Leaves of the graph: constants hold bytes, inputs are fed before each run, variables keep their
// bytes from run to run.
#pragma once

#include <string>

#include "ebb/op.h"

namespace ebb {

struct LeafAttributes {
  TensorType type;
  std::string name;
  bool operator==(const LeafAttributes&) const = default;
  void visit(auto&& field) {
    field("shape", type.shape);
    field("dtype", type.dtype);
    field("name", name);
  }
};

const Op& constant_op();
const Op& input_op();
const Op& variable_op();

inline bool is_leaf(const Op& op) {
  return &op == &constant_op() || &op == &input_op() || &op == &variable_op();
}

}  // namespace ebb
