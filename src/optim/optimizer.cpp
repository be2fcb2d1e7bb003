#include "ebb/optim/optimizer.h"

#include <fmt/format.h>

#include "ebb/error.h"
#include "ebb/ops.h"
#include "ops/adam/adam.h"
#include "ops/optimizer_step.h"
#include "ops/sgd/sgd.h"

namespace ebb::optim {
namespace {

void require_rate(double rate) {
  if (!(rate >= 0.0))
    throw ValueError(fmt::format("a learning rate must not be negative, but is {}", rate));
}

TensorType state_type(const UpdateInputs& in) {
  return {in.parameter.variable.shape(), state_dtype(in.parameter.variable.dtype())};
}

class SgdRule : public Rule {
 public:
  explicit SgdRule(const SGD& options) : o_(options) { require_rate(o_.lr); }
  std::string_view name() const override { return "sgd"; }
  double rate() const override { return o_.lr; }
  std::vector<Update> update(const UpdateInputs& in, StateStore& state) const override {
    const Variable& p = in.parameter.variable;
    Variable velocity;
    if (o_.momentum > 0.0)
      velocity = state.get(in.parameter.path + ".momentum_buffer", state_type(in), p.device());
    const SgdResult r =
        sgd_update(p, in.gradient, velocity, in.rate, in.gradient_scale,
                   {o_.momentum, in.weight_decay.value_or(o_.weight_decay), o_.nesterov});
    std::vector<Update> updates{{p, r.parameter}};
    if (velocity) updates.push_back({velocity, r.velocity});
    return updates;
  }

 private:
  SGD o_;
};

// Adam and AdamW differ in where the decay acts.
class AdamRule : public Rule {
 public:
  AdamRule(std::string_view name, double rate, AdamAttributes attributes)
      : name_(name), rate_(rate), attributes_(attributes) {
    require_rate(rate);
  }
  std::string_view name() const override { return name_; }
  double rate() const override { return rate_; }
  std::vector<Update> update(const UpdateInputs& in, StateStore& state) const override {
    const Variable& p = in.parameter.variable;
    const Variable mean = state.get(in.parameter.path + ".exp_avg", state_type(in), p.device());
    const Variable square =
        state.get(in.parameter.path + ".exp_avg_sq", state_type(in), p.device());
    AdamAttributes attributes = attributes_;
    attributes.weight_decay = in.weight_decay.value_or(attributes.weight_decay);
    const AdamResult r =
        adam_update(p, in.gradient, mean, square, in.rate, in.step, in.gradient_scale, attributes);
    return {{p, r.parameter}, {mean, r.mean}, {square, r.square}};
  }

 private:
  std::string_view name_;
  double rate_;
  AdamAttributes attributes_;
};

}  // namespace

Variable StateStore::get(const std::string& path, const TensorType& type, Device device) {
  auto [found, missing] = variables_.try_emplace(path);
  if (missing) {
    const TraceScope scope(path);
    found->second = Variable(zeros(type.shape, type.dtype, device), Category::optimizer);
  }
  if (found->second.type() != type)
    throw ShapeError(fmt::format("optimizer state \"{}\" is {}, but {} is needed", path,
                                 to_string(found->second.type()), to_string(type)));
  return found->second;
}

Group no_decay_for_vectors() {
  return {.matches = [](const nn::NamedVariable& p) { return p.variable.rank() < 2; },
          .rate_factor = 1.0,
          .weight_decay = 0.0};
}

Optimizer::Optimizer(std::shared_ptr<const Rule> rule)
    : rule_(std::move(rule)), rate_(rule_->rate()) {}
Optimizer::Optimizer(const SGD& o) : Optimizer(std::make_shared<SgdRule>(o)) {}
Optimizer::Optimizer(const Adam& o)
    : Optimizer(std::make_shared<AdamRule>(
          "adam", o.lr, AdamAttributes{o.beta1, o.beta2, o.eps, o.weight_decay, false})) {}
Optimizer::Optimizer(const AdamW& o)
    : Optimizer(std::make_shared<AdamRule>(
          "adamw", o.lr, AdamAttributes{o.beta1, o.beta2, o.eps, o.weight_decay, true})) {}

Optimizer Optimizer::with_rate(double rate) const {
  require_rate(rate);
  Optimizer copy = *this;
  copy.rate_ = rate;
  return copy;
}

std::vector<Update> Optimizer::updates(const std::vector<nn::NamedVariable>& parameters,
                                       const std::vector<Tensor>& gradients, const Tensor& rate,
                                       const Tensor& step, const Tensor& clip_scale,
                                       StateStore& state) const {
  std::vector<Update> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TraceScope scope(parameters[i].path);
    const DType dtype = state_dtype(parameters[i].variable.dtype());
    UpdateInputs in{parameters[i], gradients[i], rate, step, {}, {}};
    in.gradient_scale = clip_scale ? cast(clip_scale, dtype)
                                   : full({}, 1.0, dtype, parameters[i].variable.device());
    for (const Group& group : groups_) {
      if (!group.matches(parameters[i])) continue;
      if (group.rate_factor != 1.0) in.rate = rate * group.rate_factor;
      in.weight_decay = group.weight_decay;
      break;  // the first group that matches decides
    }
    for (Update& update : rule_->update(in, state)) all.push_back(std::move(update));
  }
  return all;
}

Tensor global_norm(const std::vector<Tensor>& gradients) {
  std::vector<Tensor> squares;
  for (const Tensor& gradient : gradients)
    squares.push_back(reshape(cast(sum_squares(gradient), f32), {1}));
  return sqrt(sum(concat(squares, 0)));
}

}  // namespace ebb::optim
