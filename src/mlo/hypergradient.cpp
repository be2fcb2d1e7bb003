#include "mlo/hypergradient.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ebb/ops.h"

namespace ebb::mlo {
namespace {

constexpr std::array<Vectors (*)(const Hop&), 6> methods{darts, sama,      neumann,
                                                         cg,    reinforce, unrolled};

}  // namespace

Sized sized(const Vectors& vector, const Tensor& scale) {
  if (!scale) return {vector, {}};
  double elements = 0.0;
  for (const Tensor& t : vector) elements += static_cast<double>(t.shape().elements());
  const Tensor length = norm(vector);
  // Normalises to a root mean square of one.
  const Tensor size =
      maximum(length, scalar_like(length, 1e-20)) * (1.0 / std::sqrt(std::max(elements, 1.0)));
  return {scaled(vector, reciprocal(size)), size};
}

// The gradient contains the loss scale, and so do its derivatives.
Vectors Hop::second_derivative(const Vectors& v, const std::vector<Tensor>& wrt) const {
  const Sized in = sized(v, scale());
  const Vectors image = trace.gradient_vjp(through, in.vector, wrt);
  return in.factor ? scaled(image, in.factor / scale()) : image;
}

Vectors response(const Hop& hop) {
  return methods[static_cast<std::size_t>(hop.config().type)](hop);
}

}  // namespace ebb::mlo
