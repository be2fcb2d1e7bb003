#include "train/step_builder.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "ebb/grad.h"
#include "ebb/node.h"
#include "ebb/ops.h"
#include "graph/draw_scope.h"
#include "train/leaf_sums.h"

namespace ebb {
namespace {

void mark_gradients(const std::vector<Tensor>& gradients) {
  for (const Tensor& g : gradients)
    if (g) optim::as_made(g).node()->set_category(Category::gradients);
}

}  // namespace

void StepGraph::tell(std::string name, const Tensor& number) {
  graph.outputs.push_back(cast(number, f64));
  names.push_back(std::move(name));
}

StepBuilder::StepBuilder(const StepRules& rules, optim::StateStore& state, Device device)
    : rules_(rules), state_(state), device_(device), at_precision_(rules.precision) {
  if (rules.loss_scale) scaler_.emplace(*rules.loss_scale, state, device);
}

LossGradients StepBuilder::gradients(const std::vector<MicroBatch>& parts,
                                     const std::vector<Tensor>& wrt,
                                     const std::function<Tensor(const MicroBatch&)>& share) const {
  LossGradients result;
  result.scale = loss_scale();
  for (const MicroBatch& part : parts) {
    const Tensor loss = share(part);
    result.loss = result.loss ? result.loss + loss : loss;
    result.last = with_scale(loss, result.scale);
    result.gradients = result.gradients.empty() ? grad_where_reached(result.last, wrt)
                                                : grad_onto(result.gradients, result.last, wrt);
    mark_gradients(result.gradients);
  }
  return result;
}

LeafTrace::LeafTrace(const Batch& own, const RankOptions& options)
    : ranks(options), blocks(LeafBlocks::of(options)) {
  const std::int64_t items = own.tensors.empty() || own.x().rank() == 0 ? 0 : own.x().shape()[0];
  if (items == 0 || items % blocks.per_rank() != 0)
    throw ShapeError(
        fmt::format("a rank's part of a batch must be {} leaves of equal size, but it has {} items",
                    blocks.per_rank(), items));
  leaves = micro_batches(own, blocks.per_rank());
  for (MicroBatch& leaf : leaves) leaf.share = 1.0 / static_cast<double>(blocks.leaves);
}

LossGradients StepBuilder::gradients(LeafTrace& trace, const std::vector<Tensor>& wrt,
                                     const std::function<Tensor(const MicroBatch&)>& share) const {
  LossGradients result;
  result.scale = loss_scale();
  std::vector<std::string> paths;
  for (const Tensor& variable : wrt) paths.push_back(variable.node()->path());
  using Result = LeafSums::Result;
  LeafSums losses(trace.ranks, trace.blocks, Result::whole, {"loss"});
  LeafSums sums(trace.ranks, trace.blocks,
                trace.ranks.shards(Shard::state) ? Result::range : Result::whole, std::move(paths));
  sums.mark = [](const Tensor& sum) { mark_gradients({sum}); };
  for (std::size_t place = 0; place < trace.leaves.size(); ++place) {
    // Random numbers belong to a leaf of the batch, not to a rank.
    const DrawScope draws(static_cast<std::uint64_t>(
        trace.blocks.leaf(trace.ranks.rank, static_cast<std::int64_t>(place))));
    std::optional<nn::ForwardScope> alone;
    if (trace.ranks.count > 1) alone.emplace(nn::Mode::train);
    const Tensor loss = share(trace.leaves[place]);
    if (alone) trace.buffers.push_back(alone->updates());
    result.last = with_scale(loss, result.scale);
    std::vector<Tensor> gradients = grad_where_reached(result.last, wrt);
    mark_gradients(gradients);
    losses.add({loss});
    sums.add(std::move(gradients));
  }
  result.loss = losses.totals().front();
  result.gradients = sums.totals();
  mark_gradients(result.gradients);
  return result;
}

GradientScaling StepBuilder::scale_gradients(const std::vector<Tensor>& gradients,
                                             const Tensor& scale, const Tensor& sound,
                                             const Tensor& step) const {
  GradientScaling result;
  result.step = step, result.taken = sound;
  const auto guarded = [&](const Tensor& factor) {
    if (!result.taken) return factor;
    const Tensor wished = factor ? factor : full({}, 1.0, f32, device_);
    return where(result.taken, wished, zeros_like(wished));
  };
  const bool by_gradients = rules_.guard == UpdateGuard::gradients;
  if (scale && !scaler_) result.factor = reciprocal(scale);
  if (!scaler_ && !rules_.clip_norm && !by_gradients) {
    result.factor = guarded(result.factor);
    return result;
  }
  const Tensor whole = rules_.norm ? rules_.norm(gradients) : optim::global_norm(gradients);
  if (scaler_) {
    LossScaler::Decision decision = scaler_->decide(scale ? whole : whole * scaler_->scale());
    result.taken = decision.taken, result.step = decision.step;
    result.norm = scale ? decision.norm : whole;
    if (scale) result.factor = decision.gradient_scale;  // 0 if the step is skipped
    result.updates = std::move(decision.updates);
  } else {
    result.norm = scale ? whole / scale : whole;
    if (by_gradients || (sound && rules_.clip_by != ClipBy::last_norm))
      result.taken = sound ? logical_and(sound, is_finite(result.norm)) : is_finite(result.norm);
  }
  const bool decided = scaler_ && scale;
  if (rules_.clip_norm) {
    const Tensor clip = clip_factor(result.norm, sound, result.updates);
    const Tensor clipped = result.factor ? result.factor * clip : clip;
    result.factor = decided ? where(result.taken, clipped, result.factor) : clipped;
  }
  if (!decided) result.factor = guarded(result.factor);
  return result;
}

Tensor StepBuilder::clip_factor(const Tensor& norm, const Tensor& sound,
                                std::vector<Update>& updates) const {
  if (rules_.clip_by != ClipBy::last_norm) return optim::clip_scale(norm, *rules_.clip_norm);
  const Variable last = state_.get(std::string(last_norm_path), norm.type(), device_);
  updates.push_back({last, sound ? where(logical_and(sound, is_finite(norm)), norm, last) : norm});
  return optim::clip_scale(last, *rules_.clip_norm);
}

std::vector<Update> StepBuilder::buffer_updates(const std::vector<Update>& updates,
                                                const Tensor& sound) {
  std::vector<Update> result;
  for (const Update& update : updates) {
    const DType dtype = update.target.dtype();
    const Tensor next = cast(at_precision_(update.value, dtype), dtype);
    result.push_back({update.target, sound ? where(sound, next, update.target) : next});
  }
  return result;
}

std::vector<Tensor> gradients_again(const LossGradients& traced, const std::vector<Tensor>& wrt) {
  std::vector<Tensor> gradients = grad(traced.last, wrt);
  mark_gradients(gradients);
  return gradients;
}

Tensor with_scale(const Tensor& loss, const Tensor& scale) {
  return scale ? cast(loss, f32) * scale : loss;
}

Tensor is_finite(const Tensor& number) {
  const Tensor difference = number - number;  // NaN for infinities and NaN
  return equal(difference, zeros_like(difference));
}

std::vector<Tensor> tensors_of(const std::vector<nn::NamedVariable>& parameters) {
  std::vector<Tensor> tensors;
  for (const nn::NamedVariable& p : parameters) tensors.push_back(p.variable);
  return tensors;
}

}  // namespace ebb
