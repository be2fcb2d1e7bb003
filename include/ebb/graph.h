// What a program computes: output tensors and new values of variables.
#pragma once

#include <vector>

#include "ebb/tensor.h"
#include "ebb/variable.h"

namespace ebb {

// After a run of the program, `target` holds `value`. During the run all nodes that read `target`
// see its old value.
struct Update {
  Variable target;
  Tensor value;
};

struct Graph {
  std::vector<Tensor> inputs;  // in the order in which they are fed
  std::vector<Tensor> outputs;
  std::vector<Update> updates;
};

// Every node that outputs and updates depend on, inputs before users.
std::vector<std::shared_ptr<Node>> topological_order(const Graph& graph);

}  // namespace ebb
