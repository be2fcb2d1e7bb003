// Structured pruning during training: groups are removed at several steps of a run. After each
// removal the model is smaller, so the step is planned anew and the optimizer's state is sliced
// (ebb/prune/training.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ebb/prune/models.h"
#include "ebb/train/sparse_training.h"

namespace ebb::prune {

struct GradualPruning {
  double share = 0.3;  // of the heads, neurons or channels of each layer: removed at the end
  MaskSchedule schedule = MaskSchedule::cubic;  // as for masks: see MaskSchedule
  // Counted in steps taken. Groups are removed after `from` steps at the earliest, then every
  // `every` steps, and for the last time after `until` steps.
  std::int64_t from = 0, until = 0, every = 100;

  // The share that is removed in total after this many steps; empty if nothing is removed then.
  std::optional<double> share_after(std::int64_t steps) const;
  // Throws a ValueError if the fields contradict each other.
  void check() const;
};

// Chooses what to remove next from a model that was pruned before. Shares refer to the sizes of the
// dense model, so that the shapes after a step depend on the share alone.
class Shrinking {
 public:
  // `dense` is the structure before any removal. The options' `keep` is not read. A kind that the
  // model lacks is a ValueError.
  Shrinking(const Structure& dense, StructuredOptions options);

  // Removes groups of `now`, those with the lowest scores in each dimension, until `share` of the
  // dense model's groups are removed.
  Removal removal(const Structure& now, const Scores& scores, double share) const;
  // The same when only shapes matter: removes the first groups.
  Removal any_removal(const Structure& now, double share) const;

 private:
  StructuredOptions options_;
  std::map<std::string, std::int64_t> sizes_;  // groups of the dimensions that are pruned, by name
};

}  // namespace ebb::prune
