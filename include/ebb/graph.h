// What a program computes: tensors to deliver and variables to overwrite.
#pragma once

#include <vector>

#include "ebb/tensor.h"
#include "ebb/variable.h"

namespace ebb {

// After the program has run, `target` holds `value`. All other nodes see the value from before the
// run.
struct Update {
  Variable target;
  Tensor value;
};

struct Graph {
  std::vector<Tensor> inputs;  // in the order in which they are fed
  std::vector<Tensor> outputs;
  std::vector<Update> updates;
};

// Every node the graph needs, inputs before users.
std::vector<std::shared_ptr<Node>> topological_order(const Graph& graph);

}  // namespace ebb
