// Costs that several ops share. Operation counts are measured: times for several shapes, divided by
// the time of an addition (see WorkRate).
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

// The same plus operations for each row (last axis) of the first input: the fixed cost of a row on
// a CPU, and of its remainder that fills no vector.
template <class A, int per_element, int per_row>
Cost cost_of_rows(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                  const A& attributes) {
  Cost cost = cost_per_element<A, per_element>(inputs, outputs, attributes);
  const Shape& shape = inputs[0].shape;
  if (shape.rank() > 0 && shape.back() > 0)
    cost.flops += per_row * static_cast<double>(shape.elements() / shape.back());
  return cost;
}

}  // namespace ebb
