// Optimizers. Their updates are nodes of the step's graph; their state is variables with paths such
// as "h.0.mlp.fc.weight.exp_avg", planned and counted like everything else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/graph.h"
#include "ebb/nn/module.h"
#include "ebb/tensor.h"

namespace ebb::optim {

// State variables by path, made when first asked for.
class StateStore {
 public:
  Variable get(const std::string& path, const TensorType& type, Device device);
  const std::map<std::string, Variable>& all() const { return variables_; }

 private:
  std::map<std::string, Variable> variables_;
};

// Parameters that are treated apart: by default all have the rule's own rate and decay.
struct Group {
  std::function<bool(const nn::NamedVariable&)> matches;
  double rate_factor = 1.0;
  std::optional<double> weight_decay;
};
// Biases and norms, which are vectors, are not decayed: the usual choice for transformers.
Group no_decay_for_vectors();

// What one parameter's update is made from.
struct UpdateInputs {
  nn::NamedVariable parameter;
  Tensor gradient;
  Tensor rate;            // scalar, float64: after schedule and group
  Tensor step;            // scalar, float64: 1 in the first step
  Tensor gradient_scale;  // scalar in the state's dtype: clipping and loss scaling
  std::optional<double> weight_decay;
};

// One algorithm. A new optimizer is a class of this kind in a file of its own.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::string_view name() const = 0;
  virtual double rate() const = 0;
  virtual std::vector<Update> update(const UpdateInputs& inputs, StateStore& state) const = 0;
};

struct SGD {
  double lr = 0.1;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.0;  // through the gradient
};

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;  // on the parameter itself
};

// Any of them. Converts from their options, so that `AdamW{.lr = 3e-4}` can be passed directly.
class Optimizer {
 public:
  Optimizer(const SGD& options);
  Optimizer(const Adam& options);
  Optimizer(const AdamW& options);
  explicit Optimizer(std::shared_ptr<const Rule> rule);

  // The same with another learning rate.
  Optimizer with_rate(double rate) const;
  Optimizer& with(Group group) { return groups_.push_back(std::move(group)), *this; }

  const Rule& rule() const { return *rule_; }
  double rate() const { return rate_; }
  // The updates of all parameters. `rate` is the scheduled rate, `step` the count from 1,
  // `clip_scale` a float32 scalar that multiplies every gradient, or empty.
  std::vector<Update> updates(const std::vector<nn::NamedVariable>& parameters,
                              const std::vector<Tensor>& gradients, const Tensor& rate,
                              const Tensor& step, const Tensor& clip_scale,
                              StateStore& state) const;

 private:
  std::shared_ptr<const Rule> rule_;
  double rate_;
  std::vector<Group> groups_;
};

// The norm of all gradients together, a float32 scalar.
Tensor global_norm(const std::vector<Tensor>& gradients);

}  // namespace ebb::optim
