// Weights as ranges (Shard::parameters): every rank has a range of each parameter, and gathers the
// others before it reads the parameter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/graph.h"
#include "ebb/nn/module.h"
#include "ebb/train/ranks.h"
#include "passes/gather_ranges.h"

namespace ebb {

// The shape of a range: with the parameter's number of axes, so that groups of an optimizer match
// it as they match the parameter. (2, 3) in ranges of 64 is (1, 64).
Shape range_shape(const Shape& whole, const RankOptions& options);

class ParameterRanges {
 public:
  // Weights in few bits, which are never trained, stay whole.
  ParameterRanges(const nn::ModuleBase& model, const RankOptions& options);

  // The variable of a parameter's range; an empty one if it stays whole.
  Variable of(const nn::NamedVariable& parameter) const;
  // The graph with all parameters that it reads gathered.
  Graph gathered(const Graph& graph) const { return gather_ranges(graph, ranges_, options_.count); }

  // Moves the values of the parameters to the ranges. From then on the model's own variables have
  // no values, and reading one is an error.
  void take_over();

 private:
  RankOptions options_;
  std::vector<nn::NamedVariable> whole_;
  Ranges ranges_;
};

}  // namespace ebb
