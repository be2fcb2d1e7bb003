// A run of `ebb train`, from the plan to the report: resuming, the check of memory, outputs, steps,
// evaluation and measurements. It is the same for workloads of one level and of several.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "cli/resume.h"
#include "cli/train_command.h"
#include "cli/trainee.h"

namespace ebb::cli {

enum class Output : bool { text, json };

// `make` makes the workload and plans its steps. Returns the exit code.
int train_run(const TrainCommand& command, const std::optional<SavedRun>& saved, Output output,
              const std::function<std::unique_ptr<Trainee>()>& make);

}  // namespace ebb::cli
