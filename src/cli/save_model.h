// Writes the model of --save at the end of a run.
#pragma once

#include <optional>

#include "cli/early_stopping.h"
#include "cli/outputs.h"
#include "cli/train_command.h"
#include "cli/train_run.h"
#include "cli/trainee.h"

namespace ebb::cli {

// Of several ranks, those that take part must call it.
bool saves(const PlanningOptions& planning);

// Gradients may overflow although losses do not, and then the weights become infinite or NaN.
// Throws NotFinite. If ranks have ranges of the weights, all must call it.
void require_finite_weights(const Trainee& trainee, const PlanningOptions& planning);

// Writes the model to the folder of --save. If that fails, it is written to a new folder among the
// temporary ones, because nothing else has the model of a run without checkpoints.
void save_model(Trainee& trainee, const TrainCommand& command, Outputs& outputs);

// With --keep-best, restores the weights with the lowest test loss. Returns the step whose weights
// the model has; if they cannot be read, those of the last step stay.
std::int64_t return_to_best(const TrainCommand& command, Trainee& trainee,
                            const EarlyStopping& stopping, Outputs& outputs);

// Ends a command with --resume auto whose run is complete, such as a job that was started again.
// The process that completed it may have been killed before it saved the model.
int end_complete_run(const TrainCommand& command, Trainee& trainee, const EarlyStopping& stopping,
                     Output output);

}  // namespace ebb::cli
