// How the levels of a workload are planned: the options of each level, their budgets, and how the
// plan is told.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/link_traffic.h"
#include "cli/planning.h"
#include "ebb/mlo/engine.h"
#include "ebb/report/source_lines.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {

// What is said for the whole goes to every level that says nothing itself. `fixed` bytes of a
// budget for the whole are not for the levels.
workloads::MultilevelOptions resolved(workloads::MultilevelOptions options,
                                      const PlanningOptions& planning, Bytes fixed);

mlo::EngineConfig engine_config(const PlanningOptions& planning, std::uint64_t seed,
                                const Rates& rates);

// Where the least budget is asked for, finds it and gives it to every level without one of its own.
void settle_budget(workloads::MultilevelOptions& options, const PlanningOptions& planning,
                   const Rates& rates);

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
