// The command line of `ebb train`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/planning.h"
#include "ebb/workloads/multilevel.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// The run itself, where it is kept, and the run that it resumes.
struct TrainCommand : workloads::TrainSpec {
  std::optional<std::int64_t> epochs;         // instead of `steps`
  std::optional<std::filesystem::path> plan;  // a file of `ebb plan --save`
  std::optional<std::filesystem::path> checkpoint, save;
  std::optional<std::string> resume;  // a folder, or auto
  std::vector<std::string> change;    // options that may differ from the resumed run's
  bool print_config = false;          // instead of training

  // Calls field(name, value) for the fields that are not part of the specification.
  template <class Self, class Field>
  static void visit_beside(Self& s, Field&& field) {
    field("epochs", s.epochs);
    field("plan", s.plan);
    field("checkpoint", s.checkpoint);
    field("save", s.save);
    field("resume", s.resume);
    field("change", s.change);
  }

  workloads::Options& workload() { return task.common; }
  const workloads::Options& workload() const { return task.common; }
  bool several_levels() const;
};

// Adds every option of `ebb train`, bound to `command`.
void add_train_options(CLI::App& app, TrainCommand& command);

// Sets `steps` from `epochs`, if given, as the number of batches that training reads in that many
// epochs. Makes the workload in order to count them.
void settle_epochs(TrainCommand& command);

// The steps of so many epochs of whole batches; a usage error if they cannot be counted.
std::int64_t steps_of_epochs(std::int64_t epochs, std::int64_t batches);

// A usage error for options of evaluation and checkpoints that require others.
void check_evaluation_options(const TrainCommand& command);

// The run as checkpoints hold it, with absolute paths. Settings that were not given are empty until
// `fill_in`.
workloads::TrainSpec spec_of(const TrainCommand& command);

// Completes a specification with the settings that the workload and the optimizer actually have.
void fill_in(workloads::TrainSpec& spec, const workloads::Workload& task,
             const optim::Optimizer& optimizer);
void fill_in(workloads::TrainSpec& spec, workloads::MultilevelWorkload& task);

// Whether the field of a specification was determined by the command line: by its option, another
// name of it, or an option that sets its default.
bool typed(const CLI::App& app, const std::string& field);

}  // namespace ebb::cli
