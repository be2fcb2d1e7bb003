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
  const Tensor scale = hop.scale();
  const std::vector<StepOutput>& leaves = hop.trace.leaves(hop.through);
  const Vectors both = hop.trace.over_leaves(
      [&](std::size_t place) {
        const Tensor loss = with_scale(hop.trace.share_of(leaves[place].loss), scale);
        const Vectors to = hop.trace.at(place, hop.to);
        // In sequence: the first pass ends before the second begins, and the second adds its
        // gradients to those of the first.
        const Vectors first = grad(-replace(loss, difference.plus), to);
        const Tensor other = replace(loss, difference.minus);
        return hop.trace.copies() ? add(first, grad(other, to)) : grad_onto(first, other, to);
      },
      hop.through.name() + ".difference");
  return scaled(without_scale(both, scale), reciprocal(difference.width));
}

}  // namespace ebb::mlo
