// The benchmarked problems. torch_ops.py holds the same names with the same sizes, where PyTorch
// has the thing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ebb/graph.h"
#include "library.h"

namespace ebb::bench {

struct Case {
  std::string name;
  std::function<Graph()> graph;  // inputs are variables, so that the plan counts them
  // The same problem on the library underneath, if it has it; float32's for a product of halves.
  std::function<Work()> underneath = {};
};

const std::vector<Case>& all_cases();

}  // namespace ebb::bench
