#include "ebb/optim/sgd.h"

#include "ops/sgd/sgd.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

class SgdRule : public Rule {
 public:
  explicit SgdRule(const SGD& options) : o_(options) {
    require_rate(o_.lr);
    require_not_negative(o_.momentum, "SGD's momentum");
    require_not_negative(o_.weight_decay, "SGD's weight_decay");
    if (o_.nesterov && o_.momentum == 0.0)
      throw ValueError("SGD's nesterov is a form of momentum, but momentum is 0");
  }
  std::string_view name() const override { return "sgd"; }
  double rate() const override { return o_.lr; }
  std::vector<StateField> state(const nn::NamedVariable& parameter,
                                const Overrides&) const override {
    if (o_.momentum == 0.0) return {};
    return {{"momentum_buffer", like_parameter(parameter)}};
  }
  std::vector<Update> update(const UpdateInputs& in,
                             std::span<const Variable> state) const override {
    const Variable& p = in.parameter.variable;
    const SgdResult r = sgd_update(
        p, in.gradient, state.empty() ? Variable{} : state[0], in.rate, in.gradient_scale,
        {.momentum = o_.momentum,
         .weight_decay = in.overrides.weight_decay.value_or(o_.weight_decay),
         .nesterov = o_.nesterov,
         .form = in.form},
        in.companion);
    std::vector<Update> updates{{p, r.parameter}};
    if (!state.empty()) updates.push_back({state[0], r.velocity});
    return with_companion(in, r.companion, std::move(updates));
  }
  Tensor precondition(const UpdateInputs&, std::span<const Variable>,
                      const Tensor& vector) const override {
    return vector;
  }

 private:
  SGD o_;
};

}  // namespace

RulePtr make_rule(const SGD& options) { return std::make_shared<SgdRule>(options); }

}  // namespace ebb::optim
