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

Optimizer& Optimizer::with(Group group) {
  if (!group.matches) throw ValueError("a group needs `matches`, which says whom it is for");
  require_not_negative(group.rate_factor, "a group's rate_factor");
  if (group.weight_decay) require_not_negative(*group.weight_decay, "a group's weight_decay");
  groups_.push_back(std::move(group));
  return *this;
}

std::string Optimizer::description() const {
  std::string text = fmt::format("{}({})", rule_->name(), options_);
  for (const Group& group : groups_) {
    OptionsPrinter printer;
    group.visit(printer);
    text += fmt::format(", group({})", printer.text());
  }
  return text;
}

const Group& Optimizer::group_of(const nn::NamedVariable& parameter) const {
  static const Group none;
  for (const Group& group : groups_)
    if (group.matches(parameter)) return group;
  return none;
}

Overrides Optimizer::overrides_of(const nn::NamedVariable& parameter) const {
  const Group& group = group_of(parameter);
  const auto decided = quantised_.find(parameter.path);
  return {group.weight_decay, decided == quantised_.end() ? group.quantise : decided->second};
}

Optimizer Optimizer::for_ranges_of(const std::vector<nn::NamedVariable>& parameters) const {
  const auto names = [&](const nn::NamedVariable& parameter, const Overrides& overrides) {
    std::vector<std::string> all;
    for (const StateField& field : rule_->state(parameter, overrides)) all.emplace_back(field.name);
    return all;
  };
  Optimizer copy = *this;
  for (const nn::NamedVariable& p : parameters) {
    Overrides quantised = overrides_of(p);
    quantised.quantise = true;
    copy.quantised_[p.path] = names(p, overrides_of(p)) == names(p, quantised);
  }
  return copy;
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
  std::vector<StateField> fields = rule_->state(parameter, overrides_of(parameter));
  if (const ParameterForm form = form_of(parameter); form.has_companion())
    fields.push_back({form.kind == ParameterForm::Kind::completed ? "lower_bits" : "rounded_off",
                      form.companion(parameter.variable.type())});
  return fields;
}

Optimizer::Parts Optimizer::parts_of(const nn::NamedVariable& parameter, const Tensor& gradient,
                                     const Tensor& rate, const Tensor& step,
                                     const Tensor& gradient_scale, StateStore& store) const {
  const DType dtype = state_dtype(parameter.variable.dtype());
  const Device device = parameter.variable.device();
  const Group& group = group_of(parameter);
  Parts parts{{.parameter = parameter,
               .gradient = as_made(gradient),
               .rate = group.rate_factor != 1.0 ? rate * group.rate_factor : rate,
               .step = step,
               .gradient_scale = gradient_scale ? gradient_scale : full({}, 1.0, dtype, device),
               .overrides = overrides_of(parameter),
               .form = form_of(parameter)},
              {}};
  for (const StateField& field : state(parameter))
    parts.state.push_back(store.get(parameter.path + '.' + std::string(field.name), field.type,
                                    device, field.initial));
  ParameterForm& form = parts.inputs.form;
  if (form.draws()) form.key = next_random_key().value;
  if (form.has_companion()) {
    parts.inputs.companion = parts.state.back();
    parts.state.pop_back();
  }
  return parts;
}

std::vector<Update> Optimizer::updates(const std::vector<nn::NamedVariable>& parameters,
                                       const std::vector<Tensor>& gradients, const Tensor& rate,
                                       const Tensor& step, const Tensor& gradient_scale,
                                       StateStore& store) const {
  std::vector<Update> all;
  std::map<DType, Tensor> scales;  // one for all parameters of a dtype
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TraceScope scope(parameters[i].path);
    const DType dtype = state_dtype(parameters[i].variable.dtype());
    Tensor& scale = scales[dtype];
    if (!scale)
      scale = gradient_scale ? cast(gradient_scale, dtype)
                             : full({}, 1.0, dtype, parameters[i].variable.device());
    const Parts parts = parts_of(parameters[i], gradients[i], rate, step, scale, store);
    for (Update& update : rule_->update(parts.inputs, parts.state))
      all.push_back(std::move(update));
  }
  return all;
}

Tensor as_made(const Tensor& gradient) {
  const Node& node = *gradient.node();
  if (&node.op() != &cast_op() || gradient.dtype() != f32) return gradient;
  const Tensor& source = node.inputs()[0];
  return source.dtype() == f16 || source.dtype() == bf16 ? source : gradient;
}

std::vector<Tensor> Optimizer::preconditioned(const std::vector<nn::NamedVariable>& parameters,
                                              const std::vector<Tensor>& gradients,
                                              const std::vector<Tensor>& vectors,
                                              const Tensor& rate, const Tensor& step,
                                              StateStore& store) const {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TraceScope scope(parameters[i].path);
    const Parts parts = parts_of(parameters[i], gradients[i], rate, step, {}, store);
    all.push_back(rule_->precondition(parts.inputs, parts.state, vectors[i]));
  }
  return all;
}

Tensor Rule::precondition(const UpdateInputs& inputs, std::span<const Variable>,
                          const Tensor&) const {
  throw ValueError(fmt::format(
      "the derivative of {}'s step in the gradient of \"{}\" is not known; it is for gradient "
      "descent and for Adam with moments in floating point",
      name(), inputs.parameter.path));
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

Tensor clip_scale(const Tensor& norm, double limit) {
  require_positive(limit, "the norm that gradients are clipped to");
  return minimum(scalar_like(norm, 1.0), limit / (norm + 1e-6));
}

}  // namespace ebb::optim
