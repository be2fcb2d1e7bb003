// Finds options that name a step which the run does not reach.
#pragma once

#include <string>
#include <vector>

#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// A sentence for each: "--warmup 100: the run ends after 3 steps, before ...". They are not errors,
// because a resumed run may reach that step.
std::vector<std::string> late_options(const workloads::TrainSpec& spec);

}  // namespace ebb::cli
