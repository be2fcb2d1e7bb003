// `ebb fit`, `ebb frontier` and `ebb profile` for workloads of several levels.
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

// The levels of a workload as one thing to plan: a budget applies to every level, and so to the
// whole. Budget and recomputation in the planning options are ignored.
Plannable plannable_levels(const workloads::MultilevelOptions& options,
                           const PlanningOptions& planning, const Rates& rates);

// The plan of all levels. A MemoryError if one of them cannot keep its budget.
mlo::Engine::WholePlan plan_levels(const workloads::MultilevelOptions& options,
                                   const PlanningOptions& planning, const Rates& rates,
                                   const Beside& beside);

// Steps of all levels, timed and measured. Times of single kernels on the page are predictions,
// because an engine runs each level's program as a whole.
struct LevelsProfile {
  mlo::Engine::WholePlan plan;
  std::vector<double> step_ms;
  Bytes measured, transient;
  CategoryBytes staying;
  std::optional<Bytes> budget;  // of all levels together
  Bytes fixed;                  // of the process, if the budget covers the whole process
  std::int64_t parameters = 0, batch = 0;
  report::SourceLines sources;
};
LevelsProfile profile_levels(const workloads::MultilevelOptions& options,
                             const PlanningOptions& planning, const Rates& rates, int warm_up,
                             int steps, bool overcommit);

}  // namespace ebb::cli
