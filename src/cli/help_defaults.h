// The defaults of a workload, for the help of verbs that run one.
#pragma once

#include <string>

#include "cli/options.h"

namespace ebb::cli {

// What options that are not given are for the workload, or for the default one if it is empty; an
// empty text for a verb without workloads. A workload that does not exist is a usage error.
std::string defaults_text(const CLI::App& verb, const std::string& workload);

}  // namespace ebb::cli
