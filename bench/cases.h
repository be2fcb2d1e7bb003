// The benchmarked problems. torch_ops.py has the same names with the same sizes, if PyTorch has the
// op.
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
  // The same problem in the underlying library, if that has it; for products of halves, in float32.
  std::function<Work()> underneath = {};
};

const std::vector<Case>& all_cases();

}  // namespace ebb::bench
