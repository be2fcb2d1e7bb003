// The inverse Hessian by a Neumann series (Lorraine, Vicol and Duvenaud, 2020):
// H⁻¹ v = α Σ (1 - αH)ʲ v, cut off after j = neumann_iterations.
#include "mlo/hypergradient.h"

namespace ebb::mlo {

Vectors neumann(const Hop& hop) {
  const std::vector<Tensor> parameters = hop.parameters();
  const double alpha = hop.config().neumann_alpha;
  // Horner's rule: x ← v + (1 - αH) x needs one vector in addition to v.
  Vectors x = hop.vector;
  for (std::int64_t j = 0; j < hop.config().neumann_iterations; ++j)
    x = add(hop.vector, add(x, scaled(hop.second_derivative(x, parameters), -alpha)));
  return scaled(hop.second_derivative(scaled(x, alpha), hop.to), -1.0);
}

}  // namespace ebb::mlo
