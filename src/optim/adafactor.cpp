#include "ebb/optim/adafactor.h"

#include <limits>

#include "ops/adafactor/adafactor.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

class AdafactorRule : public Rule {
 public:
  explicit AdafactorRule(const Adafactor& options) : o_(options) {
    require_rate(o_.lr);
    if (!(o_.beta2_decay < 0.0 && std::isfinite(o_.beta2_decay)))
      throw ValueError(fmt::format("Adafactor's beta2_decay must be negative and finite, but is {}",
                                   o_.beta2_decay));
    require_not_negative(o_.eps_square, "Adafactor's eps_square");
    require_not_negative(o_.eps_scale, "Adafactor's eps_scale");
    if (o_.beta1) require_decay(*o_.beta1, "Adafactor's beta1");
    require_not_negative(o_.weight_decay, "Adafactor's weight_decay");
    require_positive(o_.clip_threshold, "Adafactor's clip_threshold");
    if (o_.warm_up && !o_.relative_step)
      throw ValueError("Adafactor's warm_up is of the relative step, which is off");
  }
  std::string_view name() const override { return "adafactor"; }
  double rate() const override { return o_.lr; }

  std::vector<StateField> state(const nn::NamedVariable& parameter,
                                const Overrides&) const override {
    const TensorType full = like_parameter(parameter);
    std::vector<StateField> fields;
    if (full.shape.rank() >= 2) {
      const FactorShapes factors = factor_shapes(full.shape);
      fields.push_back({"exp_avg_sq_row", {factors.rows, full.dtype}});
      fields.push_back({"exp_avg_sq_col", {factors.columns, full.dtype}});
    } else {
      fields.push_back({"exp_avg_sq", full});
    }
    if (o_.beta1) fields.push_back({"exp_avg", full});
    return fields;
  }

  std::vector<Update> update(const UpdateInputs& in,
                             std::span<const Variable> state) const override {
    const Variable& p = in.parameter.variable;
    const std::vector<Tensor> out = adafactor_update(
        p, in.gradient, in.rate, in.step, in.gradient_scale, {state.begin(), state.end()},
        {.relative_step = o_.relative_step,
         .warm_up = o_.warm_up,
         .scale_by_parameter = o_.scale_by_parameter,
         .beta2_decay = o_.beta2_decay,
         .eps_square = o_.eps_square,
         .eps_scale = o_.eps_scale,
         .clip_threshold = o_.clip_threshold.value_or(std::numeric_limits<double>::infinity()),
         .momentum = o_.beta1.has_value(),
         .beta1 = o_.beta1.value_or(0.0),
         .weight_decay = in.overrides.weight_decay.value_or(o_.weight_decay),
         .decay_by_step = o_.decay_by_step,
         .form = in.form},
        in.companion);
    std::vector<Update> updates{{p, out[0]}};
    for (std::size_t i = 0; i < state.size(); ++i) updates.push_back({state[i], out[i + 1]});
    return with_companion(in, in.companion ? out.back() : Tensor{}, std::move(updates));
  }

 private:
  Adafactor o_;
};

}  // namespace

RulePtr make_rule(const Adafactor& options) { return std::make_shared<AdafactorRule>(options); }

}  // namespace ebb::optim
