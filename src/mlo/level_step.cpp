#include "mlo/level_step.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "mlo/leaf_step.h"
#include "train/leaf_sums.h"

namespace ebb::mlo {
namespace {

void require_number(const Problem& problem, const Tensor& t, const std::string& what) {
  if (!t || t.shape().elements() != 1)
    throw ShapeError(fmt::format("problem \"{}\": its {} must be one number, but is {}",
                                 problem.name(), what, t ? to_string(t.type()) : "empty"));
}

}  // namespace

StepOutput output_of(Problem& problem, const Batch& batch, AtPrecision& at_precision) {
  StepOutput output = problem.training_step(batch);
  require_number(problem, output.loss, "loss");
  if (!is_floating(output.loss.dtype()))
    throw DTypeError(
        fmt::format("problem \"{}\": its loss must be of a floating-point dtype, but is {}",
                    problem.name(), name(output.loss.dtype())));
  const auto at = [&](const Tensor& value) { return at_precision(value, value.dtype()); };
  output.loss = at(reshape(output.loss, {}));
  if (output.log_probability) output.log_probability = at(output.log_probability);
  if (output.item_losses) output.item_losses = at(output.item_losses);
  for (auto& [key, metric] : output.metrics) {
    require_number(problem, metric, fmt::format("metric \"{}\"", key));
    metric = at(reshape(metric, {}));
  }
  return output;
}

void require_dtype(const Problem& problem) {
  require_parameter_dtype(problem.trainable_parameters(), problem.config().precision,
                          fmt::format("problem \"{}\": ", problem.name()));
}

std::vector<Update> of_own_buffers(const Problem& problem, const std::vector<Update>& all) {
  const std::vector<nn::NamedVariable> own = problem.module().buffers();
  std::vector<Update> result;
  for (const Update& update : all)
    if (std::any_of(own.begin(), own.end(),
                    [&](const nn::NamedVariable& b) { return b.variable == update.target; }))
      result.push_back(update);
  return result;
}

StepOutput traced_output(Problem& problem, const Batch& batch) {
  const nn::ForwardScope forward(nn::Mode::train);
  require_dtype(problem);
  AtPrecision at_precision(problem.config().precision);
  return output_of(problem, batch, at_precision);
}

StepRules rules_of(const Problem& problem, const RankOptions& ranks) {
  const Config& config = problem.config();
  StepRules rules{.precision = config.precision};
  if (config.precision == Precision::mixed_fp16)
    rules.loss_scale = {.initial = config.initial_dynamic_scale,
                        .growth = config.scale_factor,
                        .backoff = 1.0 / config.scale_factor};
  if (config.gradient_clipping > 0.0) rules.clip_norm = config.gradient_clipping;
  if (ranks.any())
    rules.norm = [ranks](const std::vector<Tensor>& gradients) {
      return reproducible_norm(gradients, {}, ranks);
    };
  return rules;
}

std::optional<LossScaler> scaler_of(const Problem& problem, optim::StateStore& state) {
  return StepBuilder(rules_of(problem), state, problem.device()).scaler();
}

Tensor loss_scale(const Problem& problem, optim::StateStore& state) {
  return StepBuilder(rules_of(problem), state, problem.device()).loss_scale();
}

Vectors without_scale(const Vectors& vectors, const Tensor& scale) {
  return scale ? scaled(vectors, reciprocal(scale)) : vectors;
}

TracedGradients traced_gradients(Problem& problem, const std::vector<Batch>& parts,
                                 const std::vector<Tensor>& wrt, optim::StateStore& state,
                                 LeafCopies* copies) {
  if (copies) return leaf_gradients(problem, parts, wrt, state, *copies);
  const nn::ForwardScope forward(nn::Mode::train);
  require_dtype(problem);
  StepBuilder builder(rules_of(problem), state, problem.device());
  TracedGradients result;
  const auto share = [&](const MicroBatch& part) {
    const StepOutput output = output_of(problem, part.batch, builder.at_precision());
    for (const auto& [key, metric] : output.metrics) {
      const Tensor own = part.share_of(cast(metric, f64));
      Tensor& sum = result.metrics[key];
      sum = sum ? sum + own : own;
    }
    return part.share_of(output.loss);
  };
  static_cast<LossGradients&>(result) = builder.gradients(equal_parts(parts), wrt, share);
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    result.reached.push_back(static_cast<bool>(result.gradients[i]));
    if (!result.reached[i]) result.gradients[i] = zeros_like(wrt[i]);
  }
  result.buffers = builder.buffer_updates(of_own_buffers(problem, forward.updates()), {});
  return result;
}

TracedUpdates traced_updates(Problem& problem, const TracedGradients& traced, const Tensor& rate,
                             const Tensor& step, optim::StateStore& state, Guard guard,
                             const RankOptions& ranks, const std::vector<Update>& when_not_taken) {
  std::vector<nn::NamedVariable> parameters = problem.trainable_parameters();
  Vectors gradients = traced.gradients;
  const Tensor& scale = traced.scale;
  // The hook sees unscaled gradients. If it returns them unchanged, the optimizer reads the scaled
  // gradients and divides by the scale itself.
  const Vectors seen = without_scale(gradients, scale);
  Vectors given = problem.gradient_callback(seen);
  if (given.size() != parameters.size())
    throw ValueError(
        fmt::format("problem \"{}\": its gradient callback must give {} gradients, but gives {}",
                    problem.name(), parameters.size(), given.size()));
  const bool as_they_are = given == seen;
  if (!as_they_are) gradients = std::move(given);
  // Parameters that no loss reaches are not updated, unless the hook gives them a gradient.
  std::vector<bool> updated;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    updated.push_back(traced.reached[i] || (!as_they_are && gradients[i] != seen[i]));
  if (std::find(updated.begin(), updated.end(), true) == updated.end())
    throw ValueError(
        parameters.empty()
            ? fmt::format(
                  "problem \"{}\": all its parameters are frozen, so that no step can be taken",
                  problem.name())
            : fmt::format("problem \"{}\": no loss depends on any of its {} trainable parameters",
                          problem.name(), parameters.size()));
  keep_where(updated, parameters);
  keep_where(updated, gradients);

  StepRules rules = rules_of(problem, ranks);
  if (guard == Guard::yes)
    rules.guard = UpdateGuard::gradients;
  else
    rules.loss_scale.reset();
  const StepBuilder builder(rules, state, problem.device());
  const GradientScaling scaling =
      builder.scale_gradients(gradients, as_they_are ? scale : Tensor{}, {}, step);
  TracedUpdates result{scaling.updates, rules.clip_norm ? scaling.norm : Tensor{}, scaling.taken};
  for (const Update& update : when_not_taken)
    result.updates.push_back({update.target, where(scaling.taken, update.target, update.value)});
  const auto custom = problem.custom_optimizer_step(
      {parameters, gradients, rate, scaling.step, scaling.factor, state});
  const std::vector<Update> updates =
      custom ? *custom
             : problem.optimizer().updates(parameters, gradients, rate, scaling.step,
                                           scaling.factor, state);
  for (Update update : updates) {
    for (const nn::NamedVariable& parameter : parameters)
      if (update.target == parameter.variable)
        update.value = problem.parameter_callback(parameter, update.value);
    result.updates.push_back(std::move(update));
  }
  return result;
}

}  // namespace ebb::mlo
