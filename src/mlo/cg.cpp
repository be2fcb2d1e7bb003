// The inverse Hessian by conjugate gradients (Rajeswaran et al., 2019): αH x = v is solved in
// cg_iterations steps, and H⁻¹ v = α x. Hessian-vector products are exact, by differentiating the
// gradient.
#include "ebb/ops.h"
#include "mlo/hypergradient.h"

namespace ebb::mlo {
namespace {

// a / b, and zero for 0 / 0: the residual is zero, so the solution must not change.
Tensor ratio(const Tensor& a, const Tensor& b) {
  const Tensor zero = zeros_like(b), gone = equal(b, zero);
  return where(gone, zero, a / where(gone, full_like(b, 1.0), b));
}

}  // namespace

Vectors cg(const Hop& hop) {
  const std::vector<Tensor> parameters = hop.parameters();
  const double alpha = hop.config().cg_alpha;
  Vectors x, residual = hop.vector, direction = residual;
  Tensor residual_square = dot(residual, residual);
  for (std::int64_t i = 0; i < hop.config().cg_iterations; ++i) {
    const Vectors image =
        scaled(hop.second_derivative(direction, parameters), alpha);  // αH · direction
    const Tensor length = ratio(residual_square, dot(direction, image));
    x = x.empty() ? scaled(direction, length) : add_scaled(x, length, direction);
    residual = add_scaled(residual, -length, image);
    const Tensor next = dot(residual, residual);
    direction = add_scaled(residual, ratio(next, residual_square), direction);
    residual_square = next;
  }
  return scaled(hop.second_derivative(scaled(x, alpha), hop.to), -1.0);
}

}  // namespace ebb::mlo
