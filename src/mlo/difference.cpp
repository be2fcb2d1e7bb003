#include "mlo/difference.h"

#include "ebb/grad.h"
#include "ebb/ops.h"

namespace ebb::mlo {

Difference difference(const std::vector<Tensor>& parameters, const Vectors& direction,
                      double length) {
  // For a zero direction the step is zero, and so is the difference.
  const Tensor size = norm(direction), least = scalar_like(size, 1e-20);
  const Tensor epsilon = length / maximum(size, least);
  Difference result;
  result.width = epsilon * 2.0;
  const auto moved = [&](const Tensor& by, Replacements& to) {
    const Vectors values = add_scaled(parameters, by, direction);
    // The direction depends on the parameters, but is held fixed.
    for (std::size_t i = 0; i < parameters.size(); ++i)
      to.emplace(parameters[i], stop_gradient(values[i]));
  };
  moved(epsilon, result.plus);
  moved(-epsilon, result.minus);
  return result;
}

Vectors mixed_difference(const Hop& hop, const Difference& difference) {
  const Tensor scale = hop.scale(), loss = with_scale(hop.output().loss, scale);
  // In sequence: the first pass ends before the second begins, and the second adds its gradients to
  // those of the first.
  const Vectors first = grad(-replace(loss, difference.plus), hop.to);
  const Vectors both = grad_onto(first, replace(loss, difference.minus), hop.to);
  return scaled(without_scale(both, scale), reciprocal(difference.width));
}

}  // namespace ebb::mlo
