#pragma once

#include "ebb/op.h"

namespace ebb {

const Op& reshape_op();
const Op& permute_op();
const Op& expand_op();
const Op& slice_op();
const Op& split_op();
const Op& stop_gradient_op();

// `pad` that also inserts step - 1 zeros between neighbours: the gradient of a slice with a step.
Tensor pad_with_steps(const Tensor& x, const IntList& before, const IntList& after,
                      const IntList& step, double value);

}  // namespace ebb
