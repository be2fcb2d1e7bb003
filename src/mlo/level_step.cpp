#include "mlo/level_step.h"

#include <fmt/format.h>

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

StepOutput checked_output(Problem& problem, const Batch& batch) {
  StepOutput output = problem.training_step(batch);
  require_number(problem, output.loss, "loss");
  if (!is_floating(output.loss.dtype()))
    throw DTypeError(
        fmt::format("problem \"{}\": its loss must be of a floating-point dtype, but is {}",
                    problem.name(), name(output.loss.dtype())));
  output.loss = reshape(output.loss, {});
  for (auto& [key, metric] : output.metrics) {
    require_number(problem, metric, fmt::format("metric \"{}\"", key));
    metric = reshape(metric, {});
  }
  return output;
}

// Those of the problem's own buffers: a loss that reads another level's module leaves that one's
// statistics alone.
std::vector<Update> own_buffers(const Problem& problem, const std::vector<Update>& all) {
  const std::vector<nn::NamedVariable> own = problem.module().buffers();
  std::vector<Update> result;
  for (const Update& update : all)
    if (std::any_of(own.begin(), own.end(),
                    [&](const nn::NamedVariable& b) { return b.variable == update.target; }))
      result.push_back(update);
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
  return checked_output(problem, batch);
}

TracedGradients traced_gradients(Problem& problem, const std::vector<Batch>& parts,
                                 const std::vector<Tensor>& wrt) {
  const nn::ForwardScope forward(nn::Mode::train);
  const double share = 1.0 / static_cast<double>(parts.size());
  const auto part_of = [&](const Tensor& t) { return parts.size() == 1 ? t : t * share; };
  const auto add = [](Tensor& sum, const Tensor& t) { sum = sum ? sum + t : t; };
  TracedGradients result;
  for (const Batch& part : parts) {
    const StepOutput output = checked_output(problem, part);
    const Tensor loss = part_of(output.loss);
    add(result.loss, loss);
    for (const auto& [key, metric] : output.metrics)
      add(result.metrics[key], part_of(cast(metric, f64)));
    result.gradients =
        result.gradients.empty() ? grad(loss, wrt) : grad_onto(result.gradients, loss, wrt);
    for (const Tensor& gradient : result.gradients)
      gradient.node()->set_category(Category::gradients);
  }
  result.buffers = own_buffers(problem, forward.updates());
  return result;
}

TracedUpdates traced_updates(Problem& problem, Vectors gradients, const Tensor& rate,
                             const Tensor& step, optim::StateStore& state) {
  const std::vector<nn::NamedVariable> parameters = problem.trainable_parameters();
  gradients = problem.gradient_callback(std::move(gradients));
  if (gradients.size() != parameters.size())
    throw ValueError(
        fmt::format("problem \"{}\": its gradient callback must give {} gradients, but gives {}",
                    problem.name(), parameters.size(), gradients.size()));
  TracedUpdates result;
  Tensor scale;
  if (const double limit = problem.config().gradient_clipping; limit > 0.0) {
    result.norm = optim::global_norm(gradients);
    scale = optim::clip_scale(result.norm, limit);
  }
  const auto custom =
      problem.custom_optimizer_step({parameters, gradients, rate, step, scale, state});
  result.updates =
      custom ? *custom
             : problem.optimizer().updates(parameters, gradients, rate, step, scale, state);
  for (const nn::NamedVariable& parameter : parameters)
    for (Update& update : result.updates)
      if (update.target == parameter.variable)
        update.value = problem.parameter_callback(parameter, update.value);
  return result;
}

}  // namespace ebb::mlo
