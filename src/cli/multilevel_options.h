// The options of workloads of several levels.
#pragma once

#include "cli/options.h"
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

}  // namespace ebb::cli
