#include "ebb/optim/adam.h"

#include "ops/adam/adam.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

// Adam and AdamW differ in where the decay acts.
class AdamRule : public Rule {
 public:
  AdamRule(std::string_view name, double rate, AdamAttributes attributes, DType state)
      : name_(name), rate_(rate), attributes_(attributes), state_(state) {
    require_rate(rate);
    require_state_dtype(state);
    if (attributes_.stochastic && state != bf16)
      throw ValueError("stochastic rounding is of state in bfloat16, but the state is in " +
                       std::string(ebb::name(state)));
  }
  std::string_view name() const override { return name_; }
  double rate() const override { return rate_; }
  std::vector<StateField> state(const nn::NamedVariable& parameter,
                                const Overrides&) const override {
    const TensorType type = like_parameter(parameter, state_);
    return {{"exp_avg", type}, {"exp_avg_sq", type}};
  }
  std::vector<Update> update(const UpdateInputs& in,
                             std::span<const Variable> state) const override {
    const Variable& p = in.parameter.variable;
    AdamAttributes attributes = attributes_;
    attributes.weight_decay = in.overrides.weight_decay.value_or(attributes.weight_decay);
    attributes.form = in.form;
    if (attributes.stochastic) attributes.key = next_random_key().value;
    const AdamResult r = adam_update(p, in.gradient, state[0], state[1], in.rate, in.step,
                                     in.gradient_scale, attributes, in.companion);
    return with_companion(in, r.companion,
                          {{p, r.parameter}, {state[0], r.mean}, {state[1], r.square}});
  }

 private:
  std::string_view name_;
  double rate_;
  AdamAttributes attributes_;
  DType state_;
};

template <class Options>
RulePtr make(std::string_view name, const Options& o, bool decoupled) {
  return std::make_shared<AdamRule>(
      name, o.lr,
      AdamAttributes{.beta1 = o.beta1,
                     .beta2 = o.beta2,
                     .eps = o.eps,
                     .weight_decay = o.weight_decay,
                     .decoupled = decoupled,
                     .stochastic = o.rounding == Rounding::stochastic},
      o.state);
}

}  // namespace

RulePtr make_rule(const Adam& options) { return make("adam", options, false); }
RulePtr make_rule(const AdamW& options) { return make("adamw", options, true); }

}  // namespace ebb::optim
