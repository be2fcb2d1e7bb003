#include "ebb/optim/optimizer.h"

#include "ebb/node.h"
#include "ebb/ops.h"
#include "ops/pointwise/pointwise.h"
#include "optim/state.h"

namespace ebb::optim {

Group no_decay_for_vectors() {
  return {.matches = [](const nn::NamedVariable& p) { return p.variable.rank() < 2; },
          .rate_factor = 1.0,
          .weight_decay = 0.0};
}

Optimizer::Optimizer(RulePtr rule) : rule_(std::move(rule)), rate_(rule_->rate()) {}

Optimizer Optimizer::with_rate(double rate) const {
  require_rate(rate);
  Optimizer copy = *this;
  copy.rate_ = rate;
  return copy;
}

const Group& Optimizer::group_of(const nn::NamedVariable& parameter) const {
  static const Group none;
  for (const Group& group : groups_)
    if (group.matches(parameter)) return group;
  return none;
}

Optimizer Optimizer::with_form(const ParameterForm& form) const {
  Optimizer copy = *this;
  copy.form_ = form;
  return copy;
}

ParameterForm Optimizer::form_of(const nn::NamedVariable& parameter) const {
  return parameter.variable.dtype() == bf16 ? form_ : ParameterForm{};
}

std::vector<StateField> Optimizer::state(const nn::NamedVariable& parameter) const {
  const Group& group = group_of(parameter);
  std::vector<StateField> fields = rule_->state(parameter, {group.weight_decay, group.quantise});
  if (const ParameterForm form = form_of(parameter); form.has_companion())
    fields.push_back({form.kind == ParameterForm::Kind::completed ? "lower_bits" : "rounded_off",
                      form.companion(parameter.variable.type())});
  return fields;
}

std::vector<Update> Optimizer::updates(const std::vector<nn::NamedVariable>& parameters,
                                       const std::vector<Tensor>& gradients, const Tensor& rate,
                                       const Tensor& step, const Tensor& gradient_scale,
                                       StateStore& store) const {
  std::vector<Update> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const nn::NamedVariable& parameter = parameters[i];
    const TraceScope scope(parameter.path);
    const DType dtype = state_dtype(parameter.variable.dtype());
    const Device device = parameter.variable.device();
    const Group& group = group_of(parameter);
    UpdateInputs in{.parameter = parameter,
                    .gradient = as_made(gradients[i]),
                    .rate = group.rate_factor != 1.0 ? rate * group.rate_factor : rate,
                    .step = step,
                    .gradient_scale =
                        gradient_scale ? cast(gradient_scale, dtype) : full({}, 1.0, dtype, device),
                    .overrides = {group.weight_decay, group.quantise},
                    .form = form_of(parameter)};
    std::vector<Variable> kept;
    for (const StateField& field : state(parameter))
      kept.push_back(store.get(parameter.path + '.' + std::string(field.name), field.type, device,
                               field.initial));
    if (in.form.draws()) in.form.key = next_random_key().value;
    if (in.form.has_companion()) {
      in.companion = kept.back();
      kept.pop_back();
    }
    for (Update& update : rule_->update(in, kept)) all.push_back(std::move(update));
  }
  return all;
}

Tensor as_made(const Tensor& gradient) {
  const Node& node = *gradient.node();
  if (&node.op() != &cast_op() || gradient.dtype() != f32) return gradient;
  const Tensor& source = node.inputs()[0];
  return source.dtype() == f16 || source.dtype() == bf16 ? source : gradient;
}

Bytes state_bytes(const Optimizer& optimizer, const std::vector<nn::NamedVariable>& parameters) {
  Bytes total;
  for (const nn::NamedVariable& parameter : parameters)
    for (const StateField& field : optimizer.state(parameter)) total += field.type.bytes();
  return total;
}

Tensor global_norm(const std::vector<Tensor>& gradients) {
  std::vector<Tensor> squares;
  for (const Tensor& gradient : gradients)
    squares.push_back(reshape(cast(sum_squares(as_made(gradient)), f32), {1}));
  return sqrt(sum(concat(squares, 0)));
}

}  // namespace ebb::optim
