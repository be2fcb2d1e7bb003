// Finds options without effect on this run, most because it does not reach the step they name.
#pragma once

#include <string>
#include <vector>

#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// A sentence for each: "--warmup 100: the run ends after 3 steps, before ...". They are not errors,
// because a resumed run may reach that step, or write the next checkpoint.
std::vector<std::string> late_options(const workloads::TrainSpec& spec);

}  // namespace ebb::cli
