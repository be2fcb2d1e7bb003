// Structured pruning during training: groups go at several steps of a run, more and more of them.
// Each time the model gets smaller, so the step is planned anew and the optimizer's state is sliced
// along (ebb/prune/training.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ebb/prune/models.h"
#include "ebb/train/sparse_training.h"

namespace ebb::prune {

struct GradualPruning {
  double share = 0.3;  // of the heads, neurons or channels of each layer: gone at the end
  MaskSchedule schedule = MaskSchedule::cubic;  // that of masks: see MaskSchedule
  // Counted in steps taken. Groups go after `from` steps at the earliest, then every `every` steps,
  // and after `until` steps for the last time.
  std::int64_t from = 0, until = 0, every = 100;

  // After so many steps: the share that is gone from then on; empty if nothing goes then.
  std::optional<double> share_after(std::int64_t steps) const;
  // A ValueError where the fields contradict each other.
  void check() const;
};

// What goes next from a model that was pruned before. Shares are of the numbers that the dense
// model had, so that the shapes after a step depend on the share alone.
class Shrinking {
 public:
  // `dense`: before anything went. Its `keep` is not read. A kind that the model lacks is a
  // ValueError.
  Shrinking(const Structure& dense, StructuredOptions options);

  // Groups of `now`, the lowest scores of each dimension, so that `share` of the dense model's are
  // gone.
  Removal removal(const Structure& now, const Scores& scores, double share) const;
  // The same where only shapes matter: the first groups go.
  Removal any_removal(const Structure& now, double share) const;

 private:
  StructuredOptions options_;
  std::map<std::string, std::int64_t> sizes_;  // groups of the dimensions that are pruned, by name
};

}  // namespace ebb::prune
