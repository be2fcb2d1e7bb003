// Multilevel workloads on the command line: their options, and what `ebb train` and `ebb plan` do
// with them.
#pragma once

#include <optional>

#include "cli/options.h"
#include "cli/planning.h"
#include "cli/resume.h"
#include "cli/train_command.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

bool is_multilevel(const std::string& workload);

// What of a level can be set: the problem it is, or also how it takes memory, which a study decides
// by itself.
enum class LevelSettings : bool { problem, all };

// Adds --classifier, --method, --imbalance, --meta and the options of each level, such as
// --classifier.lr and, of all settings, --classifier.accumulate.
void add_multilevel_options(CLI::App& app, workloads::MultilevelOptions& options,
                            LevelSettings settings = LevelSettings::all);

// A usage error where any of them is given for a workload of one level.
void refuse_multilevel_options(const CLI::App& app, const std::string& workload);

enum class Output : bool { text, json };
int train_multilevel(const TrainCommand& command, const std::optional<SavedRun>& saved,
                     Output output);
int plan_multilevel(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
                    Output output);

}  // namespace ebb::cli
