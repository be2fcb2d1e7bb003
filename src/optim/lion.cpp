#include "ebb/optim/lion.h"

#include "ops/lion/lion.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

class LionRule : public Rule {
 public:
  explicit LionRule(const Lion& options) : o_(options) {
    require_rate(o_.lr);
    require_decay(o_.beta1, "Lion's beta1");
    require_decay(o_.beta2, "Lion's beta2");
    require_not_negative(o_.weight_decay, "Lion's weight_decay");
    require_state_dtype(o_.state);
  }
  std::string_view name() const override { return "lion"; }
  double rate() const override { return o_.lr; }
  std::vector<StateField> state(const nn::NamedVariable& parameter,
                                const Overrides&) const override {
    return {{"exp_avg", like_parameter(parameter, o_.state)}};
  }
  std::vector<Update> update(const UpdateInputs& in,
                             std::span<const Variable> state) const override {
    const Variable& p = in.parameter.variable;
    const LionResult r =
        lion_update(p, in.gradient, state[0], in.rate, in.gradient_scale,
                    {.beta1 = o_.beta1,
                     .beta2 = o_.beta2,
                     .weight_decay = in.overrides.weight_decay.value_or(o_.weight_decay),
                     .form = in.form},
                    in.companion);
    return with_companion(in, r.companion, {{p, r.parameter}, {state[0], r.mean}});
  }

 private:
  Lion o_;
};

}  // namespace

RulePtr make_rule(const Lion& options) { return std::make_shared<LionRule>(options); }

}  // namespace ebb::optim
