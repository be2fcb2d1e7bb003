// The options every verb that runs a workload shares.
#pragma once

#include "cli/options.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {

// Adds --workload, the sizes, --batch, --data and --seed, bound to `options`. Workloads of several
// levels are offered by verbs that know what to do with them.
enum class Levels : bool { one, several };
void add_workload_options(CLI::App& app, workloads::Options& options, Levels levels = Levels::one);

// Of one level, then of several.
std::vector<std::string> all_workload_names();

// The option that sets it, such as "--kv-heads".
std::string option_of(workloads::Setting setting);

// A usage error for options that the workload has no use for.
void check_workload_options(const workloads::Options& options);
void check_workload_options(const workloads::MultilevelOptions& options);

}  // namespace ebb::cli
