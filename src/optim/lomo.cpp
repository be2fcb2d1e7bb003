#include <limits>

#include "ebb/ops.h"
#include "ebb/optim/sgd.h"
#include "ops/sgd/sgd.h"
#include "optim/state.h"

namespace ebb::optim {
namespace {

class LomoRule : public Rule {
 public:
  explicit LomoRule(const LOMO& options) : o_(options) {
    require_rate(o_.lr);
    require_not_negative(o_.weight_decay, "LOMO's weight_decay");
    require_positive(o_.clip_value, "LOMO's clip_value");
    require_positive(o_.clip_parameter_norm, "LOMO's clip_parameter_norm");
  }
  std::string_view name() const override { return "lomo"; }
  double rate() const override { return o_.lr; }
  std::vector<StateField> state(const nn::NamedVariable&, const Overrides&) const override {
    return {};
  }
  std::vector<Update> update(const UpdateInputs& in, std::span<const Variable>) const override {
    const Variable& p = in.parameter.variable;
    const SgdResult r =
        sgd_update(p, in.gradient, {}, in.rate, scale_of(in),
                   {.weight_decay = in.overrides.weight_decay.value_or(o_.weight_decay),
                    .clip_value = o_.clip_value.value_or(std::numeric_limits<double>::infinity()),
                    .form = in.form},
                   in.companion);
    return with_companion(in, r.companion, {{p, r.parameter}});
  }
  Tensor precondition(const UpdateInputs&, std::span<const Variable>,
                      const Tensor& vector) const override {
    return vector;
  }

 private:
  // The gradient scale, reduced if the scaled gradient exceeds the maximal norm.
  Tensor scale_of(const UpdateInputs& in) const {
    if (!o_.clip_parameter_norm) return in.gradient_scale;
    const Tensor norm =
        cast(sqrt(sum_squares(in.gradient)), in.gradient_scale.dtype()) * abs(in.gradient_scale);
    return in.gradient_scale *
           minimum(scalar_like(norm, 1.0), *o_.clip_parameter_norm / (norm + 1e-6));
  }

  LOMO o_;
};

}  // namespace

RulePtr make_rule(const LOMO& options) { return std::make_shared<LomoRule>(options); }

}  // namespace ebb::optim
