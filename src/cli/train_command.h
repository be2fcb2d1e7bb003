// What `ebb train` is asked for, and the same as a specification.
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

struct TrainCommand {
  workloads::MultilevelOptions task;  // of workloads of one level, `task.common` alone
  PlanningOptions planning;
  std::int64_t steps = 100, warmup = 0, eval_batches = 8;
  std::string schedule = "constant";
  std::optional<double> rate;
  bool overcommit = false;  // start with a plan larger than the memory that is available

  std::optional<std::filesystem::path> plan;  // a file of `ebb plan --save`
  std::optional<std::filesystem::path> checkpoint, save, log;
  std::optional<std::int64_t> checkpoint_every;
  std::int64_t keep = 1;              // checkpoints
  std::optional<std::string> resume;  // a folder, or auto
  std::vector<std::string> change;    // options that may differ from the resumed run's

  workloads::Options& workload() { return task.common; }
  const workloads::Options& workload() const { return task.common; }
  bool several_levels() const;
};

// Adds every option of `ebb train`, bound to `command`.
void add_train_options(CLI::App& app, TrainCommand& command);

// The command as a specification: what was not said is empty, until `fill_in`.
workloads::TrainSpec spec_of(const TrainCommand& command);
// The other way: the command that asks for this.
void apply(const workloads::TrainSpec& spec, TrainCommand& command);

// Completes a specification by what workload and optimizer came to be.
void fill_in(workloads::TrainSpec& spec, const workloads::Options& used,
             const optim::Optimizer& optimizer, std::int64_t accumulate);
void fill_in(workloads::TrainSpec& spec, workloads::MultilevelWorkload& task);

// Whether the field of a specification follows from what was typed: its option, another name of it,
// or an option that sets its default.
bool typed(const CLI::App& app, const std::string& field);

}  // namespace ebb::cli
