// Refuses a way to recompute that would have no effect, with what has one.
#pragma once

#include <span>
#include <string>

#include "ebb/plan.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// For an option that was given with or without a budget: auto and greedy recompute what one asks
// for, and the planner takes "marked" with a budget for auto.
void check_recompute(const std::string& option, const Recompute& recompute, bool budget);

// For an option that was given, and the plans made with it: rules other than "none", and without a
// budget, must recompute something. `model` is a name for the error.
void require_effect(const std::string& option, const Recompute& recompute, const std::string& model,
                    std::span<const Plan* const> plans);

// The same for --recompute and the step of a workload of one level.
void require_recomputation(const workloads::PlanningOptions& planning, const std::string& workload,
                           const Plan& plan);

}  // namespace ebb::cli
