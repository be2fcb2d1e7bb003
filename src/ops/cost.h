// Costs that several ops share.
#pragma once

#include "ebb/op.h"

namespace ebb {

// `operations` for each element of the first input; every input and output moved once.
template <class A, int operations>
Cost cost_per_element(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                      const A&) {
  Cost cost = default_cost(inputs, outputs);
  cost.flops = operations * static_cast<double>(inputs[0].shape.elements());
  return cost;
}

}  // namespace ebb
