// The graph of one level's step under construction: its inputs, and the parts that hypergradient
// methods request.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "ebb/graph.h"
#include "mlo/level.h"
#include "mlo/level_step.h"

namespace ebb::mlo {

class StepTrace {
 public:
  // `types` are those of each batch that is fed.
  StepTrace(Level& owner, const Feeding& feeding,
            const std::vector<std::vector<TensorType>>& types);

  Level& owner() const { return owner_; }
  const std::vector<Tensor>& inputs() const { return inputs_; }
  // The batches, rate and step of an update.
  std::vector<Batch> batches(const When& when) const;
  const Tensor& rate(const When& when) const { return scalars_.at(when).first; }
  const Tensor& step(const When& when) const { return scalars_.at(when).second; }

  // The loss of a level below for its last batch; all callers share one graph. With leaves it is
  // the sum over all of them, and the log-probability that of all samples.
  const StepOutput& output(Level& level);
  // The same for each leaf of this rank, which reads its own copies; without leaves, one output.
  const std::vector<StepOutput>& leaves(Level& level);
  // The gradient of that loss, times its scale, with respect to the level's meta-trainable
  // parameters; with Config::first_order off, including the level's own hypergradients.
  const Vectors& gradient(Level& level);
  // vᵀ · the derivative of that gradient in `wrt`.
  Vectors gradient_vjp(Level& level, const Vectors& v, const std::vector<Tensor>& wrt);
  // The scale of a level's loss; empty: 1.
  static Tensor scale(Level& level) { return loss_scale(level.problem(), level.optimizer_state()); }

  // --- Leaves of the levels' batches

  LeafCopies* copies() { return copies_ ? &*copies_ : nullptr; }  // null: there are no leaves
  // The copies of these tensors that a leaf reads.
  Vectors at(std::size_t place, const Vectors& whole);
  // A leaf's share of a mean over the whole batch, from the mean over the leaf.
  Tensor share_of(const Tensor& mean) const;
  // The sum over all leaves of what `part` returns for each leaf of this rank.
  Vectors over_leaves(const std::function<Vectors(std::size_t place)>& part,
                      const std::string& path);

  std::vector<Update> updates;  // of the methods' state

 private:
  // Whether the gradient of a level is that of its loss alone.
  bool of_loss_alone(const Level& level) const;
  // The gradient of each leaf's share of the loss, times its scale, in the leaf's copies.
  const std::vector<Vectors>& leaf_gradients(Level& level);

  Level& owner_;
  std::optional<LeafCopies> copies_;
  std::vector<Tensor> inputs_;
  std::map<Feeding::Part, Batch> batches_;
  std::map<When, std::pair<Tensor, Tensor>> scalars_;
  std::map<Level*, StepOutput> outputs_;
  std::map<Level*, std::vector<StepOutput>> leaves_;
  std::map<Level*, std::vector<Vectors>> leaf_gradients_;
  std::map<Level*, Vectors> gradients_;
};

// The gradients of a level's trainable parameters: from its loss, plus the hypergradients along
// every path.
TracedGradients whole_gradients(StepTrace& trace, Level& level, const std::vector<Batch>& parts);

// The whole step. Its outputs are the loss, the metrics and, for an update, the norm of clipped
// gradients, the scale of a float16 loss, and whether an update guarded against overflow was
// skipped.
StepGraph step_graph(Level& level, StepKind kind, const Feeding& feeding,
                     const std::vector<std::vector<TensorType>>& types);

}  // namespace ebb::mlo
