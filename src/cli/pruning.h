// Options of structured pruning during training (ebb/prune/gradual.h), and its part of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "cli/options.h"
#include "cli/resume.h"
#include "ebb/prune/gradual.h"
#include "ebb/prune/training.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// Adds --prune, --prune-schedule, --prune-from, --prune-until, --prune-every, --prune-structure and
// --prune-multiple.
void add_prune_options(CLI::App& app, workloads::PruneOptions& options);

// The requested pruning; empty if none is requested. A usage error if the options contradict each
// other or other options of the run.
std::optional<prune::GradualPruning> gradual_pruning(const PlanningOptions& planning);

// The note in checkpoints that holds the removed share, and its value; 0 without the note.
inline constexpr const char* pruned_note = "pruned";
double pruned_share(const SavedRun& saved);

// Gives the model of a saved run's workload the shapes that it has in the checkpoint.
void shrink_as_saved(const SavedRun& saved, workloads::Workload& task);

// Removes parts of a model during a run.
class Pruner {
 public:
  // `share` is already removed, in a resumed run; the workload's model then gets the remaining
  // shapes, and no values.
  Pruner(const prune::GradualPruning& pruning, const workloads::PruneOptions& options,
         workloads::Workload& task, std::vector<TensorType> types, double share);

  // The total share that is removed after this many steps; empty if nothing is removed then.
  std::optional<double> due(std::int64_t steps) const { return pruning_.share_after(steps); }
  double share() const { return share_; }

  // What is removed next. Empty if rounding leaves all numbers as they are.
  struct Cut {
    prune::Structure structure;
    prune::Removal removal;
  };
  std::optional<Cut> next(double share) const;
  // Makes the workload's model smaller.
  void apply(const Cut& cut, double share);

  // The sizes of the run before and after each cut, for its report.
  struct Size {
    std::int64_t step = 0;
    double share = 0.0;
    std::int64_t parameters = 0;
    Bytes weights = {}, gradients = {}, state = {};  // at the peak of the planned step
    Bytes peak = {}, held = {};                      // planned, and held at the end of these steps
  };
  std::vector<Size> sizes;
  nlohmann::ordered_json fields() const;
  std::string text() const;

 private:
  prune::Structure structure() const;

  prune::GradualPruning pruning_;
  workloads::Workload& task_;
  std::vector<TensorType> types_;
  prune::Shrinking shrinking_;
  double share_ = 0.0;
};

}  // namespace ebb::cli
