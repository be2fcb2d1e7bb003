// The options of workloads of several levels.
#pragma once

#include "cli/options.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

using workloads::is_multilevel;

// Which settings of a level can be given: only those of the problem, or also those that decide its
// memory. A study sets the latter itself.
enum class LevelSettings : bool { problem, all };

// Adds --classifier, --method, --imbalance, --meta and the options of each level, such as
// --classifier.lr and, with LevelSettings::all, --classifier.accumulate.
void add_multilevel_options(CLI::App& app, workloads::MultilevelOptions& options,
                            LevelSettings settings = LevelSettings::all);

}  // namespace ebb::cli
