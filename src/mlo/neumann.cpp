// The inverse Hessian by a Neumann series (Lorraine, Vicol and Duvenaud, 2020):
// H⁻¹ v = α Σ (1 - αH)ʲ v, cut off after j = neumann_iterations.
#include "ebb/grad.h"
#include "mlo/hypergradient.h"

namespace ebb::mlo {

Vectors neumann(const Hop& hop) {
  const Vectors& gradient = hop.gradient();
  const std::vector<Tensor> parameters = hop.parameters();
  const double alpha = hop.config().neumann_alpha;
  Vectors term = hop.vector, sum = hop.vector;
  for (std::int64_t j = 0; j < hop.config().neumann_iterations; ++j) {
    term = add(term, scaled(vjp(gradient, term, parameters), -alpha));
    sum = add(sum, term);
  }
  return scaled(vjp(gradient, scaled(sum, alpha), hop.to), -1.0);
}

}  // namespace ebb::mlo
