// The options every verb that runs a workload shares.
#pragma once

#include <CLI/CLI.hpp>

#include "ebb/workloads/workload.h"

namespace ebb::cli {

// Adds --workload, the sizes, --batch, --data and --seed, bound to `options`.
void add_workload_options(CLI::App& app, workloads::Options& options);

}  // namespace ebb::cli
