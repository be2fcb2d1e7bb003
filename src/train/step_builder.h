// Builds the graph of a training step from a loss: gradients summed over the parts of a batch,
// loss scaling, clipping, and the decision whether the step is taken. A TrainStep is built by it,
// and so is the step of every level of a multilevel problem (mlo/level_step.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ebb/train/train_step.h"
#include "train/at_precision.h"
#include "train/micro_batches.h"

namespace ebb {

// The part of a step's options that decides its graph.
struct StepRules {
  Precision precision = Precision::fp32;
  std::optional<LossScale> loss_scale = {};  // with one, steps whose gradients overflow are skipped
  std::optional<double> clip_norm = {};
  ClipBy clip_by = ClipBy::this_norm;
  UpdateGuard guard = UpdateGuard::none;
  // The global norm of gradients; by default optim::global_norm.
  std::function<Tensor(const std::vector<Tensor>&)> norm = {};
};

// A graph whose outputs are numbers with names.
struct StepGraph {
  Graph graph;
  std::vector<std::string> names;  // of the outputs

  void tell(std::string name, const Tensor& number);
};

// A loss and its gradients.
struct LossGradients {
  Tensor loss;                    // the sum over all parts of the batch
  Tensor last;                    // the last part's share of it, times `scale`
  std::vector<Tensor> gradients;  // of the loss, times `scale`; empty if the loss does not depend
  Tensor scale;                   // a scalar; empty: 1
};

// A loss that is summed over leaves, on one rank or on several.
struct LeafTrace {
  RankOptions ranks;
  LeafBlocks blocks;
  // By place of this rank's program.
  std::vector<MicroBatch> leaves;
  // Updates of running statistics by each leaf alone; collected with several ranks.
  std::vector<std::vector<Update>> buffers = {};

  // Divides this rank's part of a batch into its leaves.
  LeafTrace(const Batch& own, const RankOptions& options);
};

// What the optimizer needs in addition to the gradients.
struct GradientScaling {
  Tensor factor;  // multiplies every gradient, at 0 the optimizer does nothing; empty: 1
  Tensor step;    // the number of this step among the steps taken
  Tensor norm;    // of the gradients without scale, before clipping; empty if nothing needs it
  Tensor taken;   // whether the step is taken, a boolean; empty: always
  std::vector<Update> updates;  // of the loss scale, or of the norm for the next step
};

// The path of the state that clipping by the last step's norm keeps.
inline constexpr std::string_view last_norm_path = "clip.last_norm";

class StepBuilder {
 public:
  // `state` is the optimizer's. It also holds the loss scale and the last norm.
  StepBuilder(const StepRules& rules, optim::StateStore& state, Device device);

  AtPrecision& at_precision() { return at_precision_; }
  const std::optional<LossScaler>& scaler() const { return scaler_; }
  // The scale of the loss, a float32 scalar; empty: 1.
  Tensor loss_scale() const { return scaler_ ? Tensor(scaler_->scale()) : Tensor{}; }

  // The gradients, with respect to the variables `wrt`, of a loss that is a sum over parts of a
  // batch. `share` gives the share of a part.
  LossGradients gradients(const std::vector<MicroBatch>& parts, const std::vector<Tensor>& wrt,
                          const std::function<Tensor(const MicroBatch&)>& share) const;

  // The same summed over leaves in the order of their tree. With Shard::state and above the
  // gradients are this rank's ranges.
  LossGradients gradients(LeafTrace& trace, const std::vector<Tensor>& wrt,
                          const std::function<Tensor(const MicroBatch&)>& share) const;

  // Decides whether the step is taken, and how gradients that carry `scale` (empty: 1) are scaled
  // for the optimizer. `sound` says whether the loss is finite; empty: nothing depends on it.
  GradientScaling scale_gradients(const std::vector<Tensor>& gradients, const Tensor& scale,
                                  const Tensor& sound, const Tensor& step) const;

  // Updates of running statistics, computed at the step's precision. If `sound` is false,
  // statistics do not change; empty: always true.
  std::vector<Update> buffer_updates(const std::vector<Update>& updates, const Tensor& sound);

 private:
  Tensor clip_factor(const Tensor& norm, const Tensor& sound, std::vector<Update>& updates) const;

  StepRules rules_;
  optim::StateStore& state_;
  Device device_;
  AtPrecision at_precision_;
  std::optional<LossScaler> scaler_;
};

// The gradients of a loss with one part, in a backward pass of their own.
std::vector<Tensor> gradients_again(const LossGradients& traced, const std::vector<Tensor>& wrt);

// The loss as it is differentiated: times the scale, in float32; unchanged without a scale.
Tensor with_scale(const Tensor& loss, const Tensor& scale);

// Whether a number is finite, a boolean.
Tensor is_finite(const Tensor& number);

std::vector<Tensor> tensors_of(const std::vector<nn::NamedVariable>& parameters);

// Removes the elements for which `kept` is false.
template <class T>
void keep_where(const std::vector<bool>& kept, std::vector<T>& list) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i]) list[count++] = list[i];
  list.resize(count);
}

}  // namespace ebb
