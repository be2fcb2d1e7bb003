// One level of a multilevel problem: parameters, a loss that may read other levels' parameters,
// data, an optimizer and a config.
//
//   struct Reweight : mlo::Problem {
//     using Problem::Problem;
//     mlo::StepOutput training_step(const Batch& b) override {
//       return cross_entropy(other<Classifier>("classifier").net(b.x()), b.y());
//     }
//   };
//
// Everything except the hooks marked "On the host" is traced into programs: it is called with
// placeholders, computes nothing itself, and must not depend on values.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/data/loader.h"
#include "ebb/mlo/config.h"
#include "ebb/nn/module.h"
#include "ebb/optim/optimizer.h"
#include "ebb/optim/schedule.h"

namespace ebb::mlo {

class Engine;
class Level;

// Metrics of a step or a validation, by name.
using Stats = std::map<std::string, double>;

// The result of a training step: a loss, optionally with metrics.
struct StepOutput {
  Tensor loss;                                 // one floating-point number
  std::map<std::string, Tensor> metrics = {};  // one number each
  // For Method::reinforce, where the loss reads samples from a distribution that a higher level
  // owns: the log-probabilities of the samples, one in total or one per item. In the second case
  // also the losses of the items, whose mean is the loss.
  Tensor log_probability = {};
  Tensor item_losses = {};

  StepOutput() = default;
  StepOutput(Tensor l) : loss(std::move(l)) {}
  StepOutput(Tensor l, std::map<std::string, Tensor> m)
      : loss(std::move(l)), metrics(std::move(m)) {}
};

using LoaderPtr = std::shared_ptr<data::Loader>;

struct ProblemOptions {
  Config config = {};
  optim::SchedulePtr schedule = optim::constant();  // counts local steps
  std::vector<LoaderPtr> loaders = {};  // a batch holds the tensors of the first, then the next ...
};

class Problem {
 public:
  // The module must outlive the problem.
  Problem(std::string name, nn::ModuleBase& module, optim::Optimizer optimizer,
          const ProblemOptions& options = {});
  virtual ~Problem();
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // The loss of a batch.
  virtual StepOutput training_step(const Batch& batch) = 0;

  // --- Hooks; the first three are traced

  // Maps the gradients of trainable_parameters() to those that the optimizer receives.
  virtual std::vector<Tensor> gradient_callback(std::vector<Tensor> gradients) { return gradients; }
  // Maps a parameter's value after the optimizer's update to its final value.
  virtual Tensor parameter_callback(const nn::NamedVariable& parameter, const Tensor& value) {
    return (void)parameter, value;
  }
  // Updates instead of the optimizer's. `step` counts updates from 1; state is kept in `state`.
  struct OptimizerStep {
    const std::vector<nn::NamedVariable>& parameters;
    const std::vector<Tensor>& gradients;
    Tensor rate, step;  // scalars, float64
    // A float32 scalar that multiplies every gradient, or empty: clipping and loss scaling. At 0 no
    // step must be taken.
    Tensor gradient_scale;
    optim::StateStore& state;
  };
  virtual std::optional<std::vector<Update>> custom_optimizer_step(const OptimizerStep& step) {
    return (void)step, std::nullopt;
  }

  // On the host: before the first of the local steps that lead to a step of the levels above.
  virtual void on_inner_loop_start() {}
  // On the host: when the first loader has begun a new epoch.
  virtual void on_epoch_end() {}
  // On the host: the next batch. Overridden where batches do not come from loaders, together with
  // `batch_types`, which planning asks for.
  virtual Batch get_batch();
  virtual std::vector<TensorType> batch_types() const;
  // Additional state of the problem to store in checkpoints.
  virtual std::string save_state() const { return {}; }
  virtual void restore_state(const std::string& state) { (void)state; }

  // --- Parameters: neither set includes frozen ones

  // Those that the level's own step updates.
  virtual std::vector<nn::NamedVariable> trainable_parameters() const;
  // Those through which hypergradients of higher levels are propagated: a subset of the trainable
  // ones.
  virtual std::vector<nn::NamedVariable> meta_trainable_parameters() const;

  // Another problem of the engine.
  Problem& other(std::string_view name) const;
  template <class P>
  P& other(std::string_view name) const {
    P* problem = dynamic_cast<P*>(&other(name));
    if (!problem) wrong_type(name);
    return *problem;
  }

  const std::string& name() const { return name_; }
  nn::ModuleBase& module() const { return module_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  const Config& config() const { return options_.config; }
  const ProblemOptions& options() const { return options_; }
  Device device() const { return module_.device(); }

  std::int64_t count() const;    // local steps taken
  std::int64_t updates() const;  // updates of the parameters
  // Results of the last step: loss, metrics, gradient_norm with clipping, loss_scale and skipped in
  // float16.
  const Stats& last() const;

 private:
  friend class Engine;
  friend class Level;
  [[noreturn]] void wrong_type(std::string_view name) const;
  Level& level() const;

  std::string name_;
  nn::ModuleBase& module_;
  optim::Optimizer optimizer_;
  ProblemOptions options_;
  Level* level_ = nullptr;     // of the engine it is part of
  std::vector<Problem*> all_;  // of that engine
};

}  // namespace ebb::mlo
