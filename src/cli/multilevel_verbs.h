// What `ebb fit`, `ebb frontier` and `ebb profile` do for workloads of several levels.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/curve.h"
#include "cli/multilevel_planning.h"
#include "ebb/report/source_lines.h"

namespace ebb::cli {

// The levels of a workload as one thing to plan: a budget is for every level, and so for the whole.
// What the planning options say of budget and recomputation does not count.
Plannable plannable_levels(const workloads::MultilevelOptions& options,
                           const PlanningOptions& planning, const Rates& rates);

// The plan of all levels; a MemoryError where one of them cannot keep its budget.
mlo::Engine::WholePlan plan_levels(const workloads::MultilevelOptions& options,
                                   const PlanningOptions& planning, const Rates& rates,
                                   const Beside& beside);

// Steps of all levels, timed and measured. The page's times of kernels are predictions: an engine
// runs the programs of its levels as wholes.
struct LevelsProfile {
  mlo::Engine::WholePlan plan;
  std::vector<double> step_ms;
  Bytes measured, transient;
  CategoryBytes staying;
  std::optional<Bytes> budget;  // of all levels together
  Bytes fixed;                  // of the process, where the budget that was typed is for that too
  std::int64_t parameters = 0, batch = 0;
  report::SourceLines sources;
};
LevelsProfile profile_levels(const workloads::MultilevelOptions& options,
                             const PlanningOptions& planning, const Rates& rates, int warm_up,
                             int steps, bool overcommit);

}  // namespace ebb::cli
