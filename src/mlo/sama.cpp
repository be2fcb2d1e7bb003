// SAMA (Choe et al., 2023): the derivative of the optimizer's step replaces the inverse Hessian,
// since a best response is a fixed point of the optimizer's steps.
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "mlo/difference.h"

namespace ebb::mlo {

Vectors sama(const Hop& hop) {
  Level& level = hop.through;
  const When next{&level, When::to_come};
  Vectors gradient;
  for (const Tensor& g : without_scale(hop.trace.gradient(level), hop.scale()))
    gradient.push_back(stop_gradient(g));
  const Vectors direction = level.problem().optimizer().preconditioned(
      level.problem().meta_trainable_parameters(), gradient, hop.vector, hop.trace.rate(next),
      hop.trace.step(next), level.optimizer_state());
  return mixed_difference(hop,
                          difference(hop.parameters(), direction, hop.config().sama_adam_alpha));
}

}  // namespace ebb::mlo
