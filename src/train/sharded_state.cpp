#include "train/sharded_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ebb/error.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "ebb/replace.h"
#include "ops/collective/collective.h"

namespace ebb {

std::vector<nn::NamedVariable> ranges_of(const std::vector<nn::NamedVariable>& parameters,
                                         const RankOptions& options,
                                         const ParameterRanges* weights) {
  std::vector<nn::NamedVariable> ranges;
  for (const nn::NamedVariable& p : parameters) {
    nn::NamedVariable range = p;
    range.variable = weights ? weights->of(p)
                             : Variable(zeros(range_shape(p.variable.shape(), options),
                                              p.variable.dtype(), p.variable.device()));
    ranges.push_back(std::move(range));
  }
  return ranges;
}

std::vector<Update> sharded_updates(const optim::Optimizer& optimizer,
                                    const std::vector<nn::NamedVariable>& parameters,
                                    const std::vector<Tensor>& gradient_ranges, const Tensor& rate,
                                    const Tensor& step, const Tensor& gradient_scale,
                                    optim::StateStore& state, const RankOptions& options,
                                    const ParameterRanges* weights) {
  const std::vector<nn::NamedVariable> ranges = ranges_of(parameters, options, weights);
  std::vector<Tensor> gradients;
  Replacements own;
  std::unordered_map<Tensor, Variable> whole;  // by the variable that stands for its range
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const TraceScope scope(parameters[i].path);
    const Variable& range = ranges[i].variable;
    gradients.push_back(reshape(gradient_ranges[i], range.shape()));
    if (weights) continue;  // this rank's range is all that it updates
    own[range] = reshape(own_range(parameters[i].variable, options.count, gradient_ranges[i]),
                         range.shape());
    whole[range] = parameters[i].variable;
  }
  std::vector<Update> updates =
      optimizer.updates(ranges, gradients, rate, step, gradient_scale, state);
  if (weights) return updates;
  std::vector<Tensor> values;
  for (const Update& update : updates) values.push_back(update.value);
  values = replace(values, own);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    updates[i].value = values[i];
    const auto parameter = whole.find(updates[i].target);
    if (parameter == whole.end()) continue;
    updates[i].target = parameter->second;
    const TraceScope scope(parameter->second.node()->path());
    updates[i].value = all_gather(reshape(values[i], {values[i].shape().elements()}),
                                  parameter->second.shape(), options.count);
  }
  return updates;
}

void require_elementwise(const optim::Optimizer& optimizer) {
  // Blocks of quantised state lie in one range (range_alignment).
  constexpr std::array<std::string_view, 7> elementwise{"sgd",      "adam",      "adamw",    "lion",
                                                        "adam8bit", "adamw8bit", "adamw4bit"};
  const std::string_view rule = optimizer.rule().name();
  if (std::find(elementwise.begin(), elementwise.end(), rule) == elementwise.end())
    throw ValueError(fmt::format(
        "the state of {} cannot be sharded: it is not one number for each weight. Sharding is for "
        "sgd, adam, adamw, lion and Adam in 8 or 4 bits; without it, every rank keeps all state",
        rule));
  if (optimizer.description().find("rounding=stochastic") != std::string::npos)
    throw ValueError(fmt::format(
        "the state of {} cannot be sharded while it is rounded stochastically: the numbers drawn "
        "depend on an element's place in the whole tensor",
        rule));
}

std::map<std::string, TensorType> sharded_state(const nn::ModuleBase& model,
                                                const TrainStep& step) {
  std::map<std::string, TensorType> whole;
  const RankOptions& ranks = step.options().ranks;
  if (!ranks.shards(Shard::state)) return whole;
  for (const nn::NamedVariable& p : model.trainable_parameters())
    for (const optim::StateField& field : step.optimizer().state(p))
      whole[p.path + '.' + std::string(field.name)] = field.type;
  return whole;
}

}  // namespace ebb
