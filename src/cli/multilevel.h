// `ebb train` and `ebb plan` for workloads of several levels.
#pragma once

#include <optional>

#include "cli/level_rules.h"
#include "cli/multilevel_options.h"
#include "cli/planning.h"
#include "cli/resume.h"
#include "cli/train_command.h"
#include "cli/train_run.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

// The whole run, with the defaults of every level.
workloads::TrainSpec multilevel_spec(const TrainCommand& command);

int train_multilevel(const TrainCommand& command, const std::optional<SavedRun>& saved,
                     Output output);
int plan_multilevel(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
                    Output output);

}  // namespace ebb::cli
