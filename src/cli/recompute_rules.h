// Refuses a form of recomputation that would have no effect, and names one that has.
#pragma once

#include <span>
#include <string>

#include "ebb/plan.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

// Checks an option that was given, with or without a budget: auto and greedy need a budget, and
// with a budget the planner would treat "marked" as auto.
void check_recompute(const std::string& option, const Recompute& recompute, bool budget);

// Checks the plans made with an option that was given: without a budget, rules other than "none"
// must recompute something. `model` is a name for the error.
void require_effect(const std::string& option, const Recompute& recompute, const std::string& model,
                    std::span<const Plan* const> plans);

// The same for --recompute and the step of a workload of one level.
void require_recomputation(const workloads::PlanningOptions& planning, const std::string& workload,
                           const Plan& plan);

}  // namespace ebb::cli
