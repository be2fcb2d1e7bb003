// A whole training step as one program: forward, backward and update, planned before the first run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/optim/optimizer.h"
#include "ebb/optim/schedule.h"
#include "ebb/program.h"

namespace ebb {

// What a step is fed: a few tensors, by convention inputs first and targets second.
struct Batch {
  std::vector<Tensor> tensors;

  const Tensor& x() const { return tensors.at(0); }
  const Tensor& y() const { return tensors.at(1); }
  std::vector<TensorType> types() const;
};

using LossFunction = std::function<Tensor(const Batch&)>;

struct TrainOptions {
  optim::SchedulePtr schedule = optim::constant();
  std::optional<double> clip_norm;  // gradients are scaled down when their norm together exceeds it
  // Micro-batches a step computes one after the other, with gradients added up: the batch is cut
  // along the first axis of all its tensors into so many parts, nearly equal. The loss must be a
  // mean over items; parts count by their items, so that the sum is the whole batch's mean.
  std::int64_t accumulate = 1;
  CompileOptions compile;
};

struct StepResult {
  double loss = 0.0;
  double gradient_norm = 0.0;  // before clipping; only with clip_norm
  double rate = 0.0;
};

class TrainStep {
 public:
  // `loss` is called with placeholders of a batch's shapes whenever a new set of shapes comes.
  TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
            TrainOptions options = {});
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  StepResult operator()(const Batch& batch);
  // The same step with a clock around every kernel: the milliseconds of each instruction of the
  // plan (Program::timed_run).
  std::vector<double> timed(const Batch& batch);

  // The plan for batches of these types; made, not run, and no tensor takes memory for it.
  const Plan& plan(const std::vector<TensorType>& batch);
  // The graph it is made from.
  Graph trace(const std::vector<TensorType>& batch);

  // Where the programs of all shapes run. Evaluation can run there too: EvalStep(..., {.arena =
  // ...}).
  const std::shared_ptr<Arena>& arena() const;

  // What the operating system holds in memory of that program (Program::resident).
  Bytes resident(const std::vector<TensorType>& batch);

  // Everything beside the weights that a resumed run needs to repeat the same bits.
  optim::StateStore& optimizer_state();
  std::int64_t step() const;  // steps taken
  void set_step(std::int64_t step);
  const TrainOptions& options() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb
