// A whole training step as one program: forward, backward and update, planned before the first run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/nn/module.h"
#include "ebb/optim/optimizer.h"
#include "ebb/optim/schedule.h"
#include "ebb/precision.h"
#include "ebb/program.h"
#include "ebb/train/loss_scale.h"
#include "ebb/train/non_finite.h"

namespace ebb {

// What a step is fed: a few tensors, by convention inputs first and targets second.
struct Batch {
  std::vector<Tensor> tensors;

  const Tensor& x() const { return tensors.at(0); }
  const Tensor& y() const { return tensors.at(1); }
  std::vector<TensorType> types() const;
};

using LossFunction = std::function<Tensor(const Batch&)>;

// Whose norm gradients are clipped by. Updates need the clipping scale, so waiting for it means
// that no gradient can be used up and freed before all of them are there.
enum class ClipBy : std::uint8_t {
  this_norm,      // exact; all gradients are kept until the last is there
  two_backwards,  // exact; backward is run once for the norm and again for the updates
  last_norm,      // the norm of the step before: gradients are used up as they come
};

// What keeps a step from being taken, so that weights and state stay those of the step before.
// Where everything is finite, no bit depends on it.
enum class UpdateGuard : std::uint8_t {
  none,
  // A loss that is not finite, or gradients where their norm is waited for anyway (clipping by this
  // step's norm): takes no memory.
  loss,
  gradients,  // any gradient that is not finite: all are kept until the last is there
};

struct TrainOptions {
  optim::SchedulePtr schedule = optim::constant();
  std::optional<double> clip_norm;  // gradients are scaled down when their norm together exceeds it
  ClipBy clip_by = ClipBy::this_norm;
  // Micro-batches a step computes one after the other, with gradients added up: the batch is cut
  // along the first axis of all its tensors into so many parts, nearly equal. A batch of fewer
  // items, such as the last of an epoch, is cut into single items. The loss must be a mean; parts
  // count by their weight, so that the sum is the whole batch's mean.
  std::int64_t accumulate = 1;
  // What the loss is a mean over: a scalar of a batch or a part of one, such as the number of
  // targets that are not ignored. Without it, items.
  std::function<Tensor(const Batch&)> weight = {};
  // See precision.h. The model must be made in parameter_dtype(precision).
  Precision precision = Precision::fp32;
  // How parameters in bfloat16 are kept; without one, pure_bf16 rounds by chance and split_bf16
  // keeps 16 completing bits.
  std::optional<ParameterForm> form = {};
  LossScale loss_scale = {};  // of fp16, which has a guard of its own against gradients
  UpdateGuard guard = UpdateGuard::none;
  CompileOptions compile;
};

struct StepResult {
  double loss = 0.0;
  double gradient_norm = 0.0;  // before clipping; only with clip_norm
  double rate = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  // by the guard, or by loss scaling: nothing was updated but the scale
};

class TrainStep {
 public:
  // `loss` is called with placeholders of a batch's shapes whenever a new set of shapes comes.
  TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
            TrainOptions options = {});
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  // `meanwhile` is called while a GPU is at work on the step (Program::run).
  StepResult operator()(const Batch& batch, const std::function<void()>& meanwhile = {});
  // After a step that ended by an exception: whether weights and state are still those of the last
  // whole step (Program::intact).
  bool intact() const;
  // Tells the next batch ahead, so that its bytes are near when its step begins (Program::expect).
  void expect(const Batch& next);
  // The same step with a clock around every kernel: the milliseconds of each instruction of the
  // plan (Program::timed_run).
  std::vector<double> timed(const Batch& batch);

  // After a step whose loss or gradients were not finite and that was skipped: runs it once more
  // and finds where that begins.
  std::optional<NonFinite> find_non_finite(const Batch& batch);

  // The plan for batches of these types; made, not run, and no tensor takes memory for it.
  const Plan& plan(const std::vector<TensorType>& batch);
  // The graph it is made from.
  Graph trace(const std::vector<TensorType>& batch);

  // Where the programs of all shapes run. Evaluation can run there too: EvalStep(..., {.arena =
  // ...}).
  const std::shared_ptr<Arena>& arena() const;

  // The constants and variables of that program.
  const Leaves& leaves(const std::vector<TensorType>& batch);
  // What the operating system holds in memory of that program (Program::resident).
  Bytes resident(const std::vector<TensorType>& batch);

  // Everything beside the weights that a resumed run needs to repeat the same bits.
  optim::StateStore& optimizer_state();
  // Makes every variable of that state, also before the first plan is.
  void make_state();
  const optim::Optimizer& optimizer() const;
  std::int64_t step() const;             // steps taken
  std::int64_t optimizer_start() const;  // the step at which the optimizer's state began
  void set_step(std::int64_t step, std::int64_t optimizer_start = 0);
  const TrainOptions& options() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb
