// `ebb train --print-config`: the run as the file that --config reads.
#pragma once

#include <string>

#include "cli/options.h"
#include "cli/train_command.h"

namespace ebb::cli {

// Every option that applies to the workload. `spec` is the command's, with the defaults of the
// workload filled in; an option that is not set is a comment with its help.
std::string config_text(const CLI::App& app, const TrainCommand& command,
                        const workloads::TrainSpec& spec);

}  // namespace ebb::cli
