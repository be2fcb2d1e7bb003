// The parts of a level's step as graphs: loss, gradients and updates.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/mlo/problem.h"
#include "mlo/vectors.h"
#include "train/leaf_copies.h"
#include "train/step_builder.h"

namespace ebb::mlo {

// The loss of a batch, in training mode and at the problem's precision. Does not update running
// statistics.
StepOutput traced_output(Problem& problem, const Batch& batch);
// What a problem's code gives for a batch, computed at the problem's precision.
StepOutput output_of(Problem& problem, const Batch& batch, AtPrecision& at_precision);
// An error unless the problem's parameters have the dtype that its precision trains.
void require_dtype(const Problem& problem);
// Updates of the problem's own buffers: a loss that reads another level's module does not change
// that module's statistics.
std::vector<Update> of_own_buffers(const Problem& problem, const std::vector<Update>& all);

// How the step of a problem is built. With leaves, the norm of clipping is that of TrainStep.
StepRules rules_of(const Problem& problem, const RankOptions& ranks = {});

// The scale of a problem's loss, if it is computed in float16; its state lies in `state`.
std::optional<LossScaler> scaler_of(const Problem& problem, optim::StateStore& state);
// The scale itself, a float32 scalar; empty for other precisions.
Tensor loss_scale(const Problem& problem, optim::StateStore& state);
// Divides vectors by the scale; without a scale, returns them unchanged.
Vectors without_scale(const Vectors& vectors, const Tensor& scale);

// The loss is a mean over the parts. Where the loss does not depend on a parameter, its gradient is
// zeros.
struct TracedGradients : LossGradients {
  std::map<std::string, Tensor> metrics = {};  // means over the parts
  std::vector<bool> reached = {};              // whether the loss depends on the parameter
  std::vector<Update> buffers = {};            // running statistics of the problem's own module
};

// The gradients in `wrt`, which are variables, of the mean loss over the parts of a batch. With
// `copies` a part is this rank's share of leaves; losses, metrics and gradients are the sums over
// the leaves of all ranks.
TracedGradients traced_gradients(Problem& problem, const std::vector<Batch>& parts,
                                 const std::vector<Tensor>& wrt, optim::StateStore& state,
                                 LeafCopies* copies);

struct TracedUpdates {
  std::vector<Update> updates;  // of parameters and of the optimizer's state
  Tensor norm;                  // global norm before clipping; empty without clipping
  Tensor taken;                 // with a guard: whether the update is applied, a boolean
};

// Whether updates with gradients that are not finite are skipped.
enum class Guard : bool { no, yes };

// The updates of the reached trainable parameters, from their gradients times `scale`. With a
// guard, `when_not_taken` are additional updates that apply only if this one is skipped.
TracedUpdates traced_updates(Problem& problem, const TracedGradients& traced, const Tensor& rate,
                             const Tensor& step, optim::StateStore& state, Guard guard,
                             const RankOptions& ranks,
                             const std::vector<Update>& when_not_taken = {});

}  // namespace ebb::mlo
