// Training workloads of one level on the command line.
#pragma once

#include <optional>

#include "cli/resume.h"
#include "cli/train_command.h"
#include "cli/train_run.h"

namespace ebb::cli {

// The whole run, with the defaults of the workload.
workloads::TrainSpec single_level_spec(const TrainCommand& command);

// The workload must have been placed (planning.h).
int train_single_level(const TrainCommand& command, const std::optional<SavedRun>& saved,
                       Output output);

}  // namespace ebb::cli
