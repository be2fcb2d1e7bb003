#include "ebb/optim/quantised_adam.h"

#include "ops/quantised_adam/quantised_adam.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

class QuantisedAdamRule : public Rule {
 public:
  QuantisedAdamRule(std::string_view name, double rate, QuantisedAdamAttributes attributes,
                    std::int64_t min_elements, bool tables)
      : name_(name),
        rate_(rate),
        attributes_(attributes),
        min_elements_(min_elements),
        tables_(tables) {
    require_rate(rate);
    require_decay(attributes.adam.beta1, "Adam's beta1");
    require_decay(attributes.adam.beta2, "Adam's beta2");
    require_not_negative(attributes.adam.eps, "Adam's eps");
    require_not_negative(attributes.adam.weight_decay, "Adam's weight_decay");
    require_not_negative(static_cast<double>(min_elements), "Adam's min_quantised_elements");
  }
  std::string_view name() const override { return name_; }
  double rate() const override { return rate_; }

  std::vector<StateField> state(const nn::NamedVariable& parameter,
                                const Overrides& overrides) const override {
    if (!quantises(parameter, overrides)) {
      const TensorType type = like_parameter(parameter);
      return {{"exp_avg", type}, {"exp_avg_sq", type}};
    }
    const QuantisedTypes types =
        quantised_types(parameter.variable.shape().elements(), attributes_.bits);
    const double zero = zero_code(attributes_.bits);
    return {{"exp_avg.codes", types.codes, zero},
            {"exp_avg.absmax", types.absmax},
            {"exp_avg_sq.codes", types.codes},
            {"exp_avg_sq.absmax", types.absmax}};
  }

  std::vector<Update> update(const UpdateInputs& in,
                             std::span<const Variable> state) const override {
    const Variable& p = in.parameter.variable;
    QuantisedAdamAttributes attributes = attributes_;
    attributes.adam.weight_decay = in.overrides.weight_decay.value_or(attributes.adam.weight_decay);
    attributes.adam.form = in.form;
    if (!quantises(in.parameter, in.overrides)) {
      const AdamResult r = adam_update(p, in.gradient, state[0], state[1], in.rate, in.step,
                                       in.gradient_scale, attributes.adam, in.companion);
      return with_companion(in, r.companion,
                            {{p, r.parameter}, {state[0], r.mean}, {state[1], r.square}});
    }
    const QuantisedAdamResult r =
        quantised_adam_update(p, in.gradient, {state[0], state[1]}, {state[2], state[3]}, in.rate,
                              in.step, in.gradient_scale, attributes, in.companion);
    return with_companion(in, r.companion,
                          {{p, r.parameter},
                           {state[0], r.mean.codes},
                           {state[1], r.mean.absmax},
                           {state[2], r.square.codes},
                           {state[3], r.square.absmax}});
  }

 private:
  bool quantises(const nn::NamedVariable& parameter, const Overrides& overrides) const {
    return overrides.quantise.value_or(parameter.variable.shape().elements() >= min_elements_ &&
                                       (tables_ || parameter.role != nn::Role::table));
  }

  std::string_view name_;
  double rate_;
  QuantisedAdamAttributes attributes_;
  std::int64_t min_elements_;
  bool tables_;
};

template <class Options>
RulePtr make(std::string_view name, const Options& o, bool decoupled, int bits) {
  const AdamAttributes adam{.beta1 = o.beta1,
                            .beta2 = o.beta2,
                            .eps = o.eps,
                            .weight_decay = o.weight_decay,
                            .decoupled = decoupled};
  return std::make_shared<QuantisedAdamRule>(name, o.lr, QuantisedAdamAttributes{adam, bits},
                                             o.min_quantised_elements, o.quantise_tables);
}

}  // namespace

RulePtr make_rule(const Adam8bit& o) { return make("adam8bit", o, false, 8); }
RulePtr make_rule(const AdamW8bit& o) { return make("adamw8bit", o, true, 8); }
RulePtr make_rule(const AdamW4bit& o) { return make("adamw4bit", o, true, 4); }

}  // namespace ebb::optim
