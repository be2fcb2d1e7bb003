// Lists the defaults of a workload, for the help of verbs that run one.
#pragma once

#include <string>

#include "cli/options.h"

namespace ebb::cli {

// The values that options have for the workload (the default workload if the name is empty) when
// they are not given. Empty for a verb without workloads. A workload that does not exist is a usage
// error.
std::string defaults_text(const CLI::App& verb, const std::string& workload);

}  // namespace ebb::cli
