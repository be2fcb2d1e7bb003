// How the levels of a workload are planned: the options of each level, their budgets, and how the
// plan is told.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/budget_errors.h"
#include "cli/link_traffic.h"
#include "cli/planning.h"
#include "ebb/mlo/budget_error.h"
#include "ebb/mlo/engine.h"
#include "ebb/report/source_lines.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

// What is said for the whole goes to every level that says nothing itself. `beside` bytes of a
// budget for the whole are not for the levels.
workloads::MultilevelOptions resolved(workloads::MultilevelOptions options,
                                      const PlanningOptions& planning, Bytes beside);

mlo::EngineConfig engine_config(const PlanningOptions& planning, std::uint64_t seed,
                                const Rates& rates);

// Where the least budget is asked for, finds it and gives it to every level without one of its own.
void settle_budget(workloads::MultilevelOptions& options, const PlanningOptions& planning,
                   const Rates& rates);

// Inside a catch block: throws the error of a level about its share of the budget for the whole as
// one about that budget, with the smallest that all levels keep.
[[noreturn]] void explain_whole(const mlo::LevelBudgetError& error,
                                workloads::MultilevelOptions options,
                                const PlanningOptions& planning, const Rates& rates,
                                const Beside& beside);

// Calls `make` with budgets explained so. `options` are those of all levels, resolved.
template <class Make>
decltype(auto) within_whole(const workloads::MultilevelOptions& options,
                            const PlanningOptions& planning, const Rates& rates,
                            const Beside& beside, const Make& make) {
  try {
    return make();
  } catch (const mlo::LevelBudgetError& error) {
    explain_whole(error, options, planning, rates, beside);
  }
}

// Refuses --recompute, and that of a level, where it has no effect. `given`: as the user gave them.
void require_recomputation(const PlanningOptions& planning,
                           const workloads::MultilevelOptions& given,
                           const mlo::Engine::WholePlan& plan);

// The fixed cost of the process, with the data in memory and batches of all levels ahead. 0 unless
// the budget is for the whole process.
Bytes fixed_cost(const workloads::MultilevelOptions& options, const PlanningOptions& planning);

// What the whole may take, once all levels have budgets: that of the level with the largest. A
// budget of one level alone promises nothing for the others.
std::optional<Bytes> whole_budget(const workloads::MultilevelOptions& options,
                                  const PlanningOptions& planning, Bytes evaluation);

// What evaluation keeps beside the levels (evaluation_keeps).
Bytes kept_by_evaluation(const workloads::MultilevelOptions& options,
                         const PlanningOptions& planning);

// The lines of code that made the modules of all levels.
report::SourceLines sources_of(workloads::MultilevelWorkload& task);
std::int64_t parameters_of(workloads::MultilevelWorkload& task);  // of all levels

// Of a step of the engine: higher levels run less often.
LinkTraffic link_traffic(const mlo::Engine::WholePlan& plan, const Rates& rates);

nlohmann::ordered_json plan_fields(const mlo::Engine::WholePlan& plan);
std::string plan_summary(const mlo::Engine::WholePlan& plan);

}  // namespace ebb::cli
