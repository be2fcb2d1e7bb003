// The score function (Williams, 1992), for a level whose loss reads samples z drawn from a
// distribution p that a level above owns. A step of the level changes its parameters by -dL(z). The
// derivative of the mean of that change, times the vector v, is
//
//   -d/d(to) E[v · dL(z)] = -E[(v · dL(z) - b) · d log p(z)],
//
// for any baseline b that does not depend on z. Here b is the running mean of the rewards v ·
// dL(z), which are finite differences of losses in the direction of v.
#include <fmt/core.h>

#include <functional>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/ops.h"
#include "mlo/difference.h"

namespace ebb::mlo {

Vectors reinforce(const Hop& hop) {
  Problem& problem = hop.through.problem();
  const std::vector<StepOutput>& leaves = hop.trace.leaves(hop.through);
  const StepOutput& output = leaves.front();
  if (!output.log_probability)
    throw ValueError(
        fmt::format("problem \"{}\" is differentiated through by reinforce, so its training step "
                    "must give the log-probability of its samples",
                    problem.name()));
  const bool by_item = output.log_probability.shape().elements() != 1;
  const auto losses_of = [&](const StepOutput& o) { return by_item ? o.item_losses : o.loss; };
  const Tensor losses = losses_of(output);
  if (!losses || (by_item && losses.shape() != output.log_probability.shape()))
    throw ShapeError(
        fmt::format("problem \"{}\": log-probabilities {} go with as many item losses, but {} came",
                    problem.name(), to_string(output.log_probability.type()),
                    losses ? to_string(losses.type()) : "none"));

  const Difference step = difference(hop.parameters(), hop.vector, hop.config().reinforce_alpha);
  Vectors rewards;  // by place: of the items of a leaf, or of the leaf
  for (const StepOutput& leaf : leaves)
    rewards.push_back(stop_gradient(
        cast(replace(losses_of(leaf), step.plus) - replace(losses_of(leaf), step.minus),
             step.width.dtype()) /
        step.width));
  const auto whole = [&](const std::function<Tensor(std::size_t)>& of) {
    return hop.trace
        .over_leaves([&](std::size_t place) { return Vectors{of(place)}; },
                     hop.through.name() + ".reinforce")
        .front();
  };
  const Tensor average =
      whole([&](std::size_t place) { return hop.trace.share_of(mean(rewards[place])); });
  Variable baseline =
      hop.through.kept().get("reinforce.baseline", average.type(), problem.device());
  const double decay = hop.config().reinforce_baseline_decay;
  hop.trace.updates.push_back({baseline, baseline * decay + average * (1.0 - decay)});

  // A single log-probability for all samples of a batch is paired with the reward of the whole
  // batch.
  const auto scored = [&](const Tensor& log_probability, const Tensor& reward) {
    const Tensor advantage = reward - baseline;
    return mean(cast(reshape(log_probability, reward.shape()), advantage.dtype()) * advantage);
  };
  const Tensor score =
      by_item ? whole([&](std::size_t place) {
        return hop.trace.share_of(scored(leaves[place].log_probability, rewards[place]));
      })
              : scored(hop.output().log_probability, hop.trace.copies() ? average : rewards[0]);
  const Tensor scale = hop.scale();
  const Vectors by_samples = without_scale(grad(-with_scale(score, scale), hop.to), scale);
  // Adds the direct dependence of the loss on the level above.
  return add(by_samples, mixed_difference(hop, step));
}

}  // namespace ebb::mlo
