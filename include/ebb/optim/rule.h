// The parts of an optimizer: a rule that turns a parameter's gradient into updates, and its state.
// A new optimizer is a struct of options with a `make_rule`, a Rule in a file of its own, and a row
// in src/optim/by_name.cpp.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/graph.h"
#include "ebb/nn/module.h"
#include "ebb/parameter_form.h"
#include "ebb/tensor.h"

namespace ebb::optim {

// State variables by path, made when first asked for.
class StateStore {
 public:
  // A new variable has `initial` in every element.
  Variable get(const std::string& path, const TensorType& type, Device device,
               double initial = 0.0);
  const std::map<std::string, Variable>& all() const { return variables_; }
  // Frees variables that `needed` does not ask for, such as the state of another optimizer that a
  // checkpoint was made with.
  void keep_only(const std::function<bool(const std::string& path)>& needed) {
    std::erase_if(variables_, [&](const auto& entry) { return !needed(entry.first); });
  }

 private:
  std::map<std::string, Variable> variables_;
};

// A group's overrides of the rule's options.
struct Overrides {
  std::optional<double> weight_decay;
  std::optional<bool> quantise;  // the state, for rules that can
};

// One tensor of a parameter's state. Its path is the parameter's and then `name`:
// "h.0.mlp.fc.weight.exp_avg".
struct StateField {
  std::string_view name;
  TensorType type;
  double initial = 0.0;
};

// The inputs of one parameter's update.
struct UpdateInputs {
  nn::NamedVariable parameter;
  Tensor gradient;  // in the parameter's dtype, or in half precision for a float32 parameter
  Tensor rate;      // scalar, float64: after schedule and group
  Tensor step;      // scalar, float64: 1 in the first step
  // Scalar, float64 for float64 parameters and else float32: clipping and loss scaling. At 0 the
  // step is not taken: parameter and state stay as they are.
  Tensor gradient_scale;
  Overrides overrides;
  ParameterForm form = {};
  Variable companion = {};  // of a form that has one
};

// One algorithm.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  virtual double rate() const = 0;
  // The state of a parameter. Allocates nothing.
  virtual std::vector<StateField> state(const nn::NamedVariable& parameter,
                                        const Overrides& overrides) const = 0;
  // The updates of the parameter, of its state (the variables that `state` names, in its order) and
  // of its companion.
  virtual std::vector<Update> update(const UpdateInputs& inputs,
                                     std::span<const Variable> state) const = 0;
  // The derivative of the step with respect to the gradient, times `vector`. For gradient descent
  // it is `vector` itself. An error if the rule has no such derivative.
  virtual Tensor precondition(const UpdateInputs& inputs, std::span<const Variable> state,
                              const Tensor& vector) const;
};
using RulePtr = std::shared_ptr<const Rule>;

}  // namespace ebb::optim
