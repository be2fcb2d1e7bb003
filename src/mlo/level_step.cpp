#include "mlo/level_step.h"

#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/node.h"
#include "ebb/ops.h"

namespace ebb::mlo {
namespace {

void require_number(const Problem& problem, const Tensor& t, const std::string& what) {
  if (!t || t.shape().elements() != 1)
    throw ShapeError(fmt::format("problem \"{}\": its {} must be one number, but is {}",
                                 problem.name(), what, t ? to_string(t.type()) : "empty"));
}

// Calls a problem's code, and rewrites what it gives for the problem's precision.
class Caller {
 public:
  explicit Caller(Problem& problem) : problem_(problem) {
    const Precision precision = problem.config().precision;
    if (precision == Precision::fp32) return;
    for (const nn::NamedVariable& p : problem.trainable_parameters())
      if (p.variable.dtype() != parameter_dtype(precision))
        throw DTypeError(
            fmt::format("problem \"{}\": training in {} needs a module made in {}, "
                        "but {} is {}",
                        problem.name(), name(precision), name(parameter_dtype(precision)), p.path,
                        to_string(p.variable.type())));
    half_.emplace(product_dtype(precision));
  }

  StepOutput operator()(const Batch& batch) {
    StepOutput output = problem_.training_step(batch);
    require_number(problem_, output.loss, "loss");
    if (!is_floating(output.loss.dtype()))
      throw DTypeError(
          fmt::format("problem \"{}\": its loss must be of a floating-point dtype, but is {}",
                      problem_.name(), name(output.loss.dtype())));
    output.loss = at_precision(reshape(output.loss, {}));
    if (output.log_probability) output.log_probability = at_precision(output.log_probability);
    if (output.item_losses) output.item_losses = at_precision(output.item_losses);
    for (auto& [key, metric] : output.metrics) {
      require_number(problem_, metric, fmt::format("metric \"{}\"", key));
      metric = at_precision(reshape(metric, {}));
    }
    return output;
  }

  Tensor at_precision(const Tensor& value) {
    return half_ ? cast((*half_)({value})[0], value.dtype()) : value;
  }

 private:
  Problem& problem_;
  std::optional<HalfPrecision> half_;  // one for all, so that a parameter is cast once
};

// Updates of the problem's own buffers: a loss that reads another level's module does not change
// that module's statistics.
std::vector<Update> own_buffers(const Problem& problem, const std::vector<Update>& all,
                                Caller& caller) {
  const std::vector<nn::NamedVariable> own = problem.module().buffers();
  std::vector<Update> result;
  for (const Update& update : all)
    if (std::any_of(own.begin(), own.end(),
                    [&](const nn::NamedVariable& b) { return b.variable == update.target; }))
      result.push_back(
          {update.target, cast(caller.at_precision(update.value), update.target.dtype())});
  return result;
}

}  // namespace

std::vector<Tensor> tensors_of(const std::vector<nn::NamedVariable>& parameters) {
  std::vector<Tensor> tensors;
  for (const nn::NamedVariable& p : parameters) tensors.push_back(p.variable);
  return tensors;
}

StepOutput traced_output(Problem& problem, const Batch& batch) {
  const nn::ForwardScope forward(nn::Mode::train);
  return Caller(problem)(batch);
}

std::optional<LossScaler> scaler_of(const Problem& problem, optim::StateStore& state) {
  const Config& config = problem.config();
  if (config.precision != Precision::mixed_fp16) return {};
  return LossScaler({.initial = config.initial_dynamic_scale,
                     .growth = config.scale_factor,
                     .backoff = 1.0 / config.scale_factor},
                    state, problem.device());
}

Tensor loss_scale(const Problem& problem, optim::StateStore& state) {
  const std::optional<LossScaler> scaler = scaler_of(problem, state);
  return scaler ? scaler->scaled(full({}, 1.0, f32, problem.device())) : Tensor{};
}

Tensor with_scale(const Tensor& loss, const Tensor& scale) {
  return scale ? cast(loss, f32) * scale : loss;
}

Vectors without_scale(const Vectors& vectors, const Tensor& scale) {
  return scale ? scaled(vectors, reciprocal(scale)) : vectors;
}

TracedGradients traced_gradients(Problem& problem, const std::vector<Batch>& parts,
                                 const std::vector<Tensor>& wrt, optim::StateStore& state) {
  const nn::ForwardScope forward(nn::Mode::train);
  Caller caller(problem);
  const double share = 1.0 / static_cast<double>(parts.size());
  const auto part_of = [&](const Tensor& t) { return parts.size() == 1 ? t : t * share; };
  const auto add_to = [](Tensor& sum, const Tensor& t) { sum = sum ? sum + t : t; };
  TracedGradients result;
  result.scale = loss_scale(problem, state);
  for (const Batch& part : parts) {
    const StepOutput output = caller(part);
    const Tensor loss = part_of(output.loss), target = with_scale(loss, result.scale);
    add_to(result.loss, loss);
    for (const auto& [key, metric] : output.metrics)
      add_to(result.metrics[key], part_of(cast(metric, f64)));
    result.gradients = result.gradients.empty() ? grad_where_reached(target, wrt)
                                                : grad_onto(result.gradients, target, wrt);
    for (const Tensor& gradient : result.gradients)
      if (gradient) optim::as_made(gradient).node()->set_category(Category::gradients);
  }
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    result.reached.push_back(static_cast<bool>(result.gradients[i]));
    if (!result.reached[i]) result.gradients[i] = zeros_like(wrt[i]);
  }
  result.buffers = own_buffers(problem, forward.updates(), caller);
  return result;
}

TracedUpdates traced_updates(Problem& problem, const TracedGradients& traced, const Tensor& rate,
                             const Tensor& step, optim::StateStore& state, Guard guard,
                             const std::vector<Update>& when_not_taken) {
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
  std::size_t kept = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!traced.reached[i] && (as_they_are || gradients[i] == seen[i])) continue;
    parameters[kept] = parameters[i], gradients[kept] = gradients[i];
    ++kept;
  }
  if (kept == 0)
    throw ValueError(
        parameters.empty()
            ? fmt::format(
                  "problem \"{}\": all its parameters are frozen, so that no step can be taken",
                  problem.name())
            : fmt::format("problem \"{}\": no loss depends on any of its {} trainable parameters",
                          problem.name(), parameters.size()));
  parameters.resize(kept), gradients.resize(kept);
  const Tensor divisor = as_they_are ? scale : Tensor{};

  TracedUpdates result;
  Tensor factor = divisor ? reciprocal(divisor) : Tensor{}, count = step;
  const double limit = problem.config().gradient_clipping;
  if (guard == Guard::yes || limit > 0.0) {
    const Tensor whole = optim::global_norm(gradients);
    const Tensor norm = divisor ? whole / divisor : whole;
    if (limit > 0.0) {
      result.norm = norm;
      const Tensor clip = optim::clip_scale(norm, limit);
      factor = factor ? factor * clip : clip;
    }
    if (guard == Guard::yes) {
      Tensor taken = equal(norm - norm, zeros_like(norm));  // x - x is NaN for infinities and NaN
      if (const std::optional<LossScaler> scaler = scaler_of(problem, state)) {
        const LossScaler::Decision decision = scaler->decide(norm * loss_scale(problem, state));
        taken = decision.taken;
        count = decision.step;
        result.updates = decision.updates;
      }
      result.taken = taken;
      const Tensor wished = factor ? factor : scalar_like(norm, 1.0);
      factor = where(taken, wished, zeros_like(wished));  // at zero the optimizer does nothing
      for (const Update& update : when_not_taken)
        result.updates.push_back({update.target, where(taken, update.target, update.value)});
    }
  }
  const auto custom =
      problem.custom_optimizer_step({parameters, gradients, rate, count, factor, state});
  const std::vector<Update> updates =
      custom ? *custom
             : problem.optimizer().updates(parameters, gradients, rate, count, factor, state);
  for (Update update : updates) {
    for (const nn::NamedVariable& parameter : parameters)
      if (update.target == parameter.variable)
        update.value = problem.parameter_callback(parameter, update.value);
    result.updates.push_back(std::move(update));
  }
  return result;
}

}  // namespace ebb::mlo
