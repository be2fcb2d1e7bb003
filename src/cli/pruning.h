// Options of structured pruning during training (ebb/prune/gradual.h), and the run's part of it.
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

// What the options ask for; empty if they ask for nothing. A usage error where they contradict each
// other or other options of the run.
std::optional<prune::GradualPruning> gradual_pruning(const PlanningOptions& planning);

// The note of checkpoints that tells the share that is gone, and its value; 0 without the note.
inline constexpr const char* pruned_note = "pruned";
double pruned_share(const SavedRun& saved);

// Gives the model of a saved run's workload the shapes that it has in the checkpoint.
void shrink_as_saved(const SavedRun& saved, workloads::Workload& task);

// A model that loses parts during a run.
class Pruner {
 public:
  // `share`: what is gone already, of a run that is resumed; the workload's model then gets the
  // shapes that remain, and no values.
  Pruner(const prune::GradualPruning& pruning, const workloads::PruneOptions& options,
         workloads::Workload& task, std::vector<TensorType> types, double share);

  // After so many steps: the share that is gone from then on; empty if nothing goes then.
  std::optional<double> due(std::int64_t steps) const { return pruning_.share_after(steps); }
  double share() const { return share_; }

  // What goes next. Empty where rounding leaves all numbers as they are.
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
