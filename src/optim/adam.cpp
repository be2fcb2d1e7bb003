#include "ebb/optim/adam.h"

#include "ebb/ops.h"
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
    require_decay(attributes_.beta1, "Adam's beta1");
    require_decay(attributes_.beta2, "Adam's beta2");
    require_not_negative(attributes_.eps, "Adam's eps");
    require_not_negative(attributes_.weight_decay, "Adam's weight_decay");
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
  // The step is rate · m / (r + eps) with the new bias-corrected moments m and v = r². This is its
  // derivative with respect to the gradient g if r is large compared with eps. If r is small, with
  // almost no gradient so far, this is small, while the exact derivative is 1 / eps.
  Tensor precondition(const UpdateInputs& in, std::span<const Variable> state,
                      const Tensor& vector) const override {
    const AdamAttributes& a = attributes_;
    const DType dtype = state_dtype(in.parameter.variable.dtype());
    const Tensor g = cast(in.gradient, dtype) * in.gradient_scale, mean = cast(state[0], dtype),
                 square = cast(state[1], dtype);
    const auto correction = [&](double beta) {
      return cast(1.0 - pow(scalar_like(in.step, beta), in.step), dtype);
    };
    const Tensor next = square * a.beta2 + ebb::square(g) * (1.0 - a.beta2);
    const Tensor root = sqrt(next / correction(a.beta2));
    const Tensor slope =
        square * ((1.0 - a.beta1) * a.beta2) - g * mean * (a.beta1 * (1.0 - a.beta2));
    const Tensor scale = cast(in.rate, dtype) / (correction(a.beta1) * correction(a.beta2)) *
                         slope / pow(root + a.eps, 3.0);
    return cast(cast(vector, dtype) * scale, vector.dtype());
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
