// Multilevel workloads on the command line: their options, and what `ebb train` and `ebb plan` do
// with them.
#pragma once

#include <optional>

#include "cli/level_rules.h"
#include "cli/options.h"
#include "cli/planning.h"
#include "cli/resume.h"
#include "cli/train_command.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

using workloads::is_multilevel;

// What of a level can be set: the problem it is, or also how it takes memory, which a study decides
// by itself.
enum class LevelSettings : bool { problem, all };

// Adds --classifier, --method, --imbalance, --meta and the options of each level, such as
// --classifier.lr and, of all settings, --classifier.accumulate.
void add_multilevel_options(CLI::App& app, workloads::MultilevelOptions& options,
                            LevelSettings settings = LevelSettings::all);

// The whole run, with the defaults of every level.
workloads::TrainSpec multilevel_spec(const TrainCommand& command);

enum class Output : bool { text, json };
int train_multilevel(const TrainCommand& command, const std::optional<SavedRun>& saved,
                     Output output);
int plan_multilevel(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
                    Output output);

}  // namespace ebb::cli
