// A whole training step as one program: forward, backward and update, planned before the first run.
#pragma once

#include <functional>
#include <map>
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
#include "ebb/train/ranks.h"
#include "ebb/train/sparse_training.h"

namespace ebb {

// The inputs of a step; by convention, inputs first and targets second.
struct Batch {
  std::vector<Tensor> tensors;

  const Tensor& x() const { return at(0); }
  const Tensor& y() const { return at(1); }
  // Throws an error that states the number of tensors if the batch has no tensor i.
  const Tensor& at(std::size_t i) const;
  std::vector<TensorType> types() const;
};

using LossFunction = std::function<Tensor(const Batch&)>;

// The norm used for clipping. Updates need the clipping factor, so waiting for this step's norm
// keeps all gradients in memory until the last one exists.
enum class ClipBy : std::uint8_t {
  this_norm,      // exact; all gradients are kept until the last one exists
  two_backwards,  // exact; backward runs once for the norm and once for the updates
  last_norm,      // the norm of the previous step: each gradient is consumed at once
};

// When a step is skipped, so that weights and state do not change. If everything is finite, the
// choice changes no bit.
enum class UpdateGuard : std::uint8_t {
  none,
  // If the loss is not finite, or if the gradient norm is not finite and known before updates
  // (clipping by this step's norm): takes no memory.
  loss,
  gradients,  // if any gradient is not finite: all are kept until the last one exists
};

struct TrainOptions {
  optim::SchedulePtr schedule = optim::constant();
  std::optional<double> clip_norm;  // gradients are scaled down if their global norm exceeds it
  ClipBy clip_by = ClipBy::this_norm;
  // Gradient accumulation: the number of micro-batches, nearly equal, into which a step divides the
  // first axis of all tensors of its batch. A batch with fewer items is divided into single items.
  // The loss must be a mean; micro-batches are weighted, so that the result is the mean over the
  // whole batch.
  std::int64_t accumulate = 1;
  // Instead of `accumulate`: the leaves of a reproducible sum, and the ranks that share it.
  RankOptions ranks = {};
  // The weight of a (micro-)batch in that mean, a scalar, such as the number of targets that are
  // not ignored. By default the number of items.
  std::function<Tensor(const Batch&)> weight = {};
  // See precision.h. The model must be made in parameter_dtype(precision).
  Precision precision = Precision::fp32;
  // How bfloat16 parameters are stored; by default pure_bf16 rounds stochastically, and split_bf16
  // and fp8 store 16 lower bits.
  std::optional<ParameterForm> form = {};
  // 8: keeps activations from forward to backward in that many bits (ebb/activation_bits.h). The
  // loss must not contain gradients, which would be rounded themselves.
  std::optional<int> activation_bits = {};
  LossScale loss_scale = {};  // for fp16, which always skips steps whose gradients overflow
  UpdateGuard guard = UpdateGuard::none;
  std::optional<SparseTraining> sparse = {};  // masks of weights
  CompileOptions compile;
};

struct StepResult {
  double loss = 0.0;
  double gradient_norm = 0.0;  // before clipping; only with clip_norm
  double rate = 0.0;
  double loss_scale = 1.0;
  bool skipped = false;  // by the guard or by loss scaling: only the loss scale was updated
};

class TrainStep {
 public:
  // `loss` is called with placeholders, once for each new set of batch shapes.
  TrainStep(nn::ModuleBase& model, optim::Optimizer optimizer, LossFunction loss,
            TrainOptions options = {});
  ~TrainStep();
  TrainStep(TrainStep&&) noexcept;

  // `meanwhile` is called while a GPU is at work on the step (Program::run).
  StepResult operator()(const Batch& batch, const std::function<void()>& meanwhile = {});
  // After a step that threw: whether weights and state are still those of the last complete step
  // (Program::intact).
  bool intact() const;
  // Announces the next batch, so that its upload does not delay its step (Program::expect).
  void expect(const Batch& next);
  // The same step with each kernel timed: milliseconds of each instruction of the plan
  // (Program::timed_run).
  std::vector<double> timed(const Batch& batch);

  // After a skipped step whose loss or gradients were not finite: runs it again and finds the first
  // value that is not finite. Keeps the budget (ebb::find_non_finite).
  std::optional<NonFinite> find_non_finite(const Batch& batch);

  // The plan for batches of these types. Runs nothing and allocates no tensor.
  const Plan& plan(const std::vector<TensorType>& batch);
  // The graph it is made from.
  Graph trace(const std::vector<TensorType>& batch);

  // Where the programs of all shapes run. Evaluation can run there too: EvalStep(..., {.arena =
  // ...}).
  const std::shared_ptr<Arena>& arena() const;

  // The constants and variables of that program.
  const Leaves& leaves(const std::vector<TensorType>& batch);
  // The resident memory of that program (Program::resident).
  Bytes resident(const std::vector<TensorType>& batch);
  // What it holds in tiers other than the device, and its traffic with files (Program::held).
  ByTier<Bytes> held(const std::vector<TensorType>& batch);
  Program::FileTraffic file_traffic(const std::vector<TensorType>& batch);

  // The model's parameters, with the variables that hold their values. With Shard::parameters these
  // variables hold this rank's ranges, flattened and padded with zeros, and the model's own
  // variables have no values.
  std::vector<nn::NamedVariable> weights();
  // Rewrites a graph that reads the model's parameters, such as that of an evaluation, to read
  // these variables. With Shard::parameters it gathers what it reads, so that all ranks must run
  // it.
  Graph gathered(const Graph& graph) const;

  // Everything except the weights that a resumed run needs to repeat the same bits.
  optim::StateStore& optimizer_state();
  // Creates every variable of that state, even before the first plan.
  void make_state();
  const optim::Optimizer& optimizer() const;
  std::int64_t step() const;             // steps taken
  std::int64_t optimizer_start() const;  // the step at which the optimizer's state began
  void set_step(std::int64_t step, std::int64_t optimizer_start = 0);
  const TrainOptions& options() const;

  // With masks: the weights that have them, and how many are dead. Known once a step is planned.
  struct MaskCounts {
    std::int64_t tensors = 0, weights = 0, dead = 0;
  };
  MaskCounts mask_counts() const;
  // The mask of each of these weights by the weight's path, in the step's state. Their bytes can be
  // assigned before the first step (MaskMethod::fixed).
  std::map<std::string, Variable> masks();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ebb
