// Options that name a step which a run does not come to.
#pragma once

#include <string>
#include <vector>

#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// A sentence for each: "--warmup 100: the run ends after 3 steps, before ...". They are no error,
// as a resumed run may go on to that step.
std::vector<std::string> late_options(const workloads::TrainSpec& spec);

}  // namespace ebb::cli
