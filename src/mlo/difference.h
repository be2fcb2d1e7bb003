// Central differences along a direction in parameters. The parameters are not modified: both sides
// are expressions that replace them, so random masks are the same on both and nothing has to be
// restored.
#pragma once

#include "ebb/replace.h"
#include "mlo/hypergradient.h"

namespace ebb::mlo {

struct Difference {
  Replacements plus, minus;  // parameters ± ε · direction
  Tensor width;              // 2ε, a scalar
};

// ε is such that ε · direction has the norm `length`.
Difference difference(const std::vector<Tensor>& parameters, const Vectors& direction,
                      double length);

// -d(direction · dL/dparameters) / d(`to`) for the loss L of hop.through: the best-response
// derivative if `direction` is the vector times the inverse Hessian.
Vectors mixed_difference(const Hop& hop, const Difference& difference);

}  // namespace ebb::mlo
