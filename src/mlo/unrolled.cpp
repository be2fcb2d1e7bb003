// Differentiation through the last updates of a level, from a snapshot of its state before them.
// Each update is a region that is recomputed for backward, so that its parameters and optimizer
// state are kept, but not its activations.
#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "ebb/recompute.h"
#include "ebb/replace.h"
#include "mlo/hypergradient.h"

namespace ebb::mlo {
namespace {

void require_differentiable(Level& level) {
  const Problem& problem = level.problem();
  for (const nn::NamedVariable& parameter : problem.trainable_parameters())
    for (const optim::StateField& field : problem.optimizer().state(parameter))
      if (!is_floating(field.type.dtype))
        throw ValueError(fmt::format(
            "problem \"{}\" is unrolled, but its optimizer {} keeps \"{}\" in codes, which "
            "have no derivative",
            problem.name(), problem.optimizer().rule().name(), field.name));
}

}  // namespace

Vectors unrolled(const Hop& hop) {
  Level& level = hop.through;
  Problem& problem = level.problem();
  require_differentiable(level);
  Replacements state;  // of each variable that an update changes, the value so far
  for (std::int64_t ago = level.config().unroll_steps - 1; ago >= 0; --ago) {
    const When when{&level, ago};
    const std::vector<Batch> parts = hop.trace.batches(when);
    const TracedGradients traced =
        hop.trace.owner().config().first_order
            ? traced_gradients(problem, parts, tensors_of(problem.trainable_parameters()),
                               level.optimizer_state(), hop.trace.copies())
            : whole_gradients(hop.trace, level, parts);
    const TracedUpdates update =
        traced_updates(problem, traced, hop.trace.rate(when), hop.trace.step(when),
                       level.optimizer_state(), Guard::no, level.ranks());
    std::vector<Tensor> values;
    for (const Update& u : update.updates) {
      values.push_back(u.value);
      state.try_emplace(u.target, level.snapshot().copy_of(u.target));
    }
    Marks region = in_region(Marks{}, {});
    region.block = 0x80000000u | region.checkpoint;
    const std::vector<Tensor> next = replace(values, state, region);
    for (std::size_t i = 0; i < next.size(); ++i) state[update.updates[i].target] = next[i];
  }
  Vectors end;
  for (const Tensor& parameter : hop.parameters()) {
    const auto updated = state.find(parameter);
    end.push_back(updated == state.end() ? parameter : updated->second);  // not reached: it stays
  }
  const Tensor scale = hop.scale();
  if (!scale) return vjp(end, hop.vector, hop.to);
  // In backward, updates divide by the loss scale and second derivatives multiply by it:
  // multiplying the vector by the scale's square root keeps both within float16's range.
  const Sized in = sized(hop.vector, scale);
  const Tensor root = sqrt(scale);
  return scaled(vjp(end, scaled(in.vector, root), hop.to), in.factor / root);
}

}  // namespace ebb::mlo
