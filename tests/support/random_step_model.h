// Random small steps for the planner's search, the same for the same seed on every machine.
#pragma once

#include <cstdint>

#include "plan/recompute/step_model.h"

namespace ebb::test {

using planning::StepModel;

// Layers forward and backward with their updates, some with skip connections, statistics, cheap
// steps that write in place, or updates that are copied at the end. 8 to 14 steps when `layers` is
// 3.
StepModel random_layers(std::uint64_t seed, int layers);

// `steps` steps that read the results of any earlier ones.
StepModel random_steps(std::uint64_t seed, int steps);

}  // namespace ebb::test
