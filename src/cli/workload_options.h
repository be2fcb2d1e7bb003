// The options that all verbs which run a workload share.
#pragma once

#include "cli/options.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {

// Adds --workload, the sizes, --batch, --data and --seed, bound to `options`. Only verbs that
// support several levels offer workloads of several levels.
enum class Levels : bool { one, several };
void add_workload_options(CLI::App& app, workloads::Options& options, Levels levels = Levels::one);

// First those of one level, then those of several.
std::vector<std::string> all_workload_names();

// The option that sets it, such as "--kv-heads".
std::string option_of(workloads::Setting setting);

// A usage error for options that the workload does not use.
void check_workload_options(const workloads::Options& options);
void check_workload_options(const workloads::MultilevelOptions& options);

}  // namespace ebb::cli
