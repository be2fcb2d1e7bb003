// Metrics of a model, averaged over batches: a program traced in evaluation mode.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/train/train_step.h"

namespace ebb {

// Gives scalars for a batch, each a mean over its items.
using Metrics = std::function<std::vector<Tensor>(const Batch&)>;

class EvalStep {
 public:
  // `rewrite` is applied to the graph of every program, such as TrainStep::gathered.
  EvalStep(nn::ModuleBase& model, Metrics metrics, CompileOptions options = {},
           std::function<Graph(const Graph&)> rewrite = {});
  ~EvalStep();
  EvalStep(EvalStep&&) noexcept;

  std::vector<double> operator()(const Batch& batch);

  // The plan for batches of these types. Runs nothing and allocates no tensor.
  const Plan& plan(const std::vector<TensorType>& batch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb
