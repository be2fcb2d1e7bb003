// How the levels of a workload are planned: the options of each level, their budgets, and how the
// plan is reported.
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

// The options of all levels, with settings for the whole given to every level that has none of its
// own. The levels' share of a budget for the whole is smaller by `beside` bytes.
workloads::MultilevelOptions resolved(workloads::MultilevelOptions options,
                                      const PlanningOptions& planning, Bytes beside);

mlo::EngineConfig engine_config(const PlanningOptions& planning, std::uint64_t seed,
                                const Rates& rates);

// If the least budget is asked for, finds it and gives it to every level without a budget of its
// own.
void settle_budget(workloads::MultilevelOptions& options, const PlanningOptions& planning,
                   const Rates& rates);

// For use inside a catch block: rethrows a level's error about its share of the whole budget as an
// error about the whole budget, with the smallest that all levels can keep.
[[noreturn]] void explain_whole(const mlo::LevelBudgetError& error,
                                workloads::MultilevelOptions options,
                                const PlanningOptions& planning, const Rates& rates,
                                const Beside& beside);

// Calls `make`, with errors about budgets explained that way. `options` are those of all levels,
// resolved.
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

// Refuses --recompute, for the whole or for a level, if it has no effect. `given` are the options
// as typed.
void require_recomputation(const PlanningOptions& planning,
                           const workloads::MultilevelOptions& given,
                           const mlo::Engine::WholePlan& plan);

// The fixed cost of the process, including the data in memory and prefetched batches of all levels.
// 0 unless the budget is for the whole process.
Bytes fixed_cost(const workloads::MultilevelOptions& options, const PlanningOptions& planning);

// The limit for the whole run once all levels have budgets: the largest of these, plus
// `evaluation`. No value without --budget, because a budget of one level promises nothing for the
// others.
std::optional<Bytes> whole_budget(const workloads::MultilevelOptions& options,
                                  const PlanningOptions& planning, Bytes evaluation);

// What evaluation keeps beside the levels (evaluation_keeps).
Bytes kept_by_evaluation(const workloads::MultilevelOptions& options,
                         const PlanningOptions& planning);

// The lines of code that made the modules of all levels.
report::SourceLines sources_of(workloads::MultilevelWorkload& task);
std::int64_t parameters_of(workloads::MultilevelWorkload& task);  // of all levels

// Per step of the engine: higher levels run less often.
LinkTraffic link_traffic(const mlo::Engine::WholePlan& plan, const Rates& rates);

nlohmann::ordered_json plan_fields(const mlo::Engine::WholePlan& plan);
std::string plan_summary(const mlo::Engine::WholePlan& plan);

}  // namespace ebb::cli
