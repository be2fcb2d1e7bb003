// Optimizers. Their updates are nodes of the step's graph; their state is variables with paths such
// as "h.0.mlp.fc.weight.exp_avg", planned and counted like everything else. docs/optimizers.md says
// what each costs and when to use it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/attributes.h"
#include "ebb/optim/adafactor.h"
#include "ebb/optim/adam.h"
#include "ebb/optim/lion.h"
#include "ebb/optim/quantised_adam.h"
#include "ebb/optim/rule.h"
#include "ebb/optim/sgd.h"

namespace ebb::optim {

// Other options for some parameters; by default all have the rule's own.
struct Group {
  std::function<bool(const nn::NamedVariable&)> matches;
  double rate_factor = 1.0;
  std::optional<double> weight_decay = {};
  std::optional<bool> quantise = {};  // the state, for rules that can

  void visit(auto&& field) const {
    field("rate_factor", rate_factor);
    field("weight_decay", weight_decay);
    field("quantise", quantise);
  }
};
// Biases and norms, which are vectors, are not decayed: the usual choice for transformers.
Group no_decay_for_vectors();

// Writes options as "beta1=0.9, clip_value=none".
class OptionsPrinter {
 public:
  template <class T>
  void operator()(std::string_view field, const T& value) {
    printer_(field, value);
  }
  template <class T>
  void operator()(std::string_view field, const std::optional<T>& value) {
    value ? printer_(field, *value) : printer_(field, std::string("none"));
  }
  const std::string& text() const { return printer_.text(); }

 private:
  AttributePrinter printer_;
};

// Any optimizer. Converts from its options, so that `AdamW{.lr = 3e-4}` can be passed directly.
class Optimizer {
 public:
  explicit Optimizer(RulePtr rule);
  template <class Options>
  requires requires(const Options& options) {
    { make_rule(options) } -> std::same_as<RulePtr>;
  }
  Optimizer(const Options& options) : Optimizer(make_rule(options)) {
    OptionsPrinter printer;
    options.visit(printer);
    options_ = printer.text();
  }

  // The same with another learning rate.
  Optimizer with_rate(double rate) const;
  Optimizer& with(Group group);
  // The same with another form for bfloat16 parameters. Others stay plain.
  Optimizer with_form(const ParameterForm& form) const;

  // The same for ranges of these parameters, which are smaller than the parameters: whether their
  // state is quantised is decided by the parameters of the same paths.
  Optimizer for_ranges_of(const std::vector<nn::NamedVariable>& parameters) const;

  const Rule& rule() const { return *rule_; }
  double rate() const { return rate_; }
  // The rule with all its options except the rate, and the groups: "adamw(beta1=0.9, ...),
  // group(rate_factor=1, weight_decay=0, quantise=none)".
  std::string description() const;
  // The state of a parameter, its companion last.
  std::vector<StateField> state(const nn::NamedVariable& parameter) const;
  // The updates of all parameters. `rate` is the scheduled rate, `step` the count from 1,
  // `gradient_scale` a float32 scalar that multiplies every gradient, or empty; at 0 the step is
  // not taken.
  std::vector<Update> updates(const std::vector<nn::NamedVariable>& parameters,
                              const std::vector<Tensor>& gradients, const Tensor& rate,
                              const Tensor& step, const Tensor& gradient_scale,
                              StateStore& state) const;
  // Each vector, of its gradient's shape, multiplied by the derivative of the parameter's step with
  // respect to the gradient (Rule::precondition).
  std::vector<Tensor> preconditioned(const std::vector<nn::NamedVariable>& parameters,
                                     const std::vector<Tensor>& gradients,
                                     const std::vector<Tensor>& vectors, const Tensor& rate,
                                     const Tensor& step, StateStore& state) const;

 private:
  struct Parts {  // what a rule is given for one parameter
    UpdateInputs inputs;
    std::vector<Variable> state;
  };
  Parts parts_of(const nn::NamedVariable& parameter, const Tensor& gradient, const Tensor& rate,
                 const Tensor& step, const Tensor& gradient_scale, StateStore& store) const;
  const Group& group_of(const nn::NamedVariable& parameter) const;  // the first that matches
  Overrides overrides_of(const nn::NamedVariable& parameter) const;
  ParameterForm form_of(const nn::NamedVariable& parameter) const;

  RulePtr rule_;
  std::string options_;  // of the rule, as text
  double rate_;
  ParameterForm form_;
  std::vector<Group> groups_;
  std::map<std::string, bool> quantised_;  // by path, where it is decided
};

// The bytes of all state for these parameters. Allocates nothing.
Bytes state_bytes(const Optimizer& optimizer, const std::vector<nn::NamedVariable>& parameters);

// The gradient before backward's final cast from half precision to float32, if there is one: the
// same values in half the bytes.
Tensor as_made(const Tensor& gradient);

// The global norm of all gradients, a float32 scalar.
Tensor global_norm(const std::vector<Tensor>& gradients);
// The factor that scales gradients of this norm down to `limit`, at most 1. The same formula as
// PyTorch's.
Tensor clip_scale(const Tensor& norm, double limit);

}  // namespace ebb::optim
