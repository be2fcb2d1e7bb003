// The graph of one level's step under construction: its inputs, and the parts that hypergradient
// methods request.
#pragma once

#include <map>
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

  // The loss of a level below for its last batch; all callers share one graph.
  const StepOutput& output(Level& level);
  // The gradient of that loss, times its scale, with respect to the level's meta-trainable
  // parameters; with Config::first_order off, including the level's own hypergradients.
  const Vectors& gradient(Level& level);
  // The scale of a level's loss; empty: 1.
  static Tensor scale(Level& level) { return loss_scale(level.problem(), level.optimizer_state()); }

  std::vector<Update> updates;  // of the methods' state

 private:
  Level& owner_;
  std::vector<Tensor> inputs_;
  std::map<Feeding::Part, Batch> batches_;
  std::map<When, std::pair<Tensor, Tensor>> scalars_;
  std::map<Level*, StepOutput> outputs_;
  std::map<Level*, Vectors> gradients_;
};

// The gradients of a level's trainable parameters: from its loss, plus the hypergradients along
// every path.
TracedGradients whole_gradients(StepTrace& trace, Level& level, const std::vector<Batch>& parts);

// The whole step. Its numbers are the loss, the metrics and, of an update, the norm of gradients
// that are clipped, the scale of a loss in float16, and whether an update that is guarded against
// overflow was skipped.
StepGraph step_graph(Level& level, StepKind kind, const Feeding& feeding,
                     const std::vector<std::vector<TensorType>>& types);

}  // namespace ebb::mlo
