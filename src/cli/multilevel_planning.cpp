#include "cli/multilevel_planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/budget_errors.h"
#include "cli/evaluation.h"
#include "cli/level_rules.h"
#include "cli/page_data.h"
#include "cli/ranks.h"
#include "cli/recompute_rules.h"
#include "cli/tiers.h"
#include "cli/verb.h"
#include "ebb/data/loader.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {

using Json = nlohmann::ordered_json;

workloads::MultilevelOptions resolved(workloads::MultilevelOptions options,
                                      const PlanningOptions& planning, Bytes beside) {
  refuse_single_level_options(options.common.name, planning);
  options.common.device = device_of(planning);
  options.ranks = rank_options(planning);
  std::vector<Precision> precisions;
  for (const std::string& name : workloads::level_names(options.common.name)) {
    workloads::LevelOptions& level = options.levels[name];
    const bool own_rule = level.recompute.has_value();
    if (planning.recompute && !own_rule) level.recompute = Recompute::parse(*planning.recompute);
    if (planning.precision != "fp32" && !level.precision)
      level.precision = precision_by_name(planning.precision);
    precisions.push_back(level.precision.value_or(Precision::fp32));
    level.form = form_of(planning, precisions.back());
    if (planning.budget && planning.budget != "least" && !level.budget) {
      // If nothing is left for the levels, planning reports which budget could be kept.
      level.budget = std::max(Bytes{}, parse_bytes(*planning.budget) - beside);
    }
    if (level.recompute)
      check_recompute(own_rule ? fmt::format("--{}.recompute", name) : "--recompute",
                      *level.recompute, level.budget || planning.budget || planning.tries_budgets);
  }
  check_forms(planning, precisions);
  if (!options.common.layout &&
      uses(options, workloads::Setting::layout)) {  // the lowest level trains the classifier
    const std::string lowest = workloads::level_names(options.common.name).front();
    options.common.layout =
        fastest_layout(options.common.device,
                       options.levels[lowest].precision.value_or(Precision::fp32), planning.tf32);
  }
  return options;
}

mlo::EngineConfig engine_config(const PlanningOptions& planning, std::uint64_t seed,
                                const Rates& rates) {
  mlo::EngineConfig config;
  config.seed = seed;
  config.compile = device_options(planning, rates);
  use_tiers(planning, device_of(planning), config.compile);
  config.compile.communicator = planning.communicator;
  config.ranks = rank_options(planning);
  return config;
}

void settle_budget(workloads::MultilevelOptions& options, const PlanningOptions& planning,
                   const Rates& rates) {
  if (planning.budget != "least") return;
  for (const auto& [name, level] : options.levels)
    if (level.recompute && level.recompute->mode != Recompute::Mode::automatic && !level.budget)
      throw UsageError(
          fmt::format("--budget least is the smallest budget of --recompute auto, but the level {} "
                      "has {}: leave out one of them",
                      name, to_string(*level.recompute)));
  const auto task = workloads::make_multilevel(options);
  mlo::Engine engine(task->problems(), task->dependencies(),
                     engine_config(planning, options.common.seed, rates));
  const Bytes least = engine.least_budget();
  for (const std::string& name : workloads::level_names(options.common.name)) {
    std::optional<Bytes>& budget = options.levels[name].budget;
    if (!budget) budget = least;
  }
}

void explain_whole(const mlo::LevelBudgetError& error, workloads::MultilevelOptions options,
                   const PlanningOptions& planning, const Rates& rates, const Beside& beside) {
  if (!planning.budget || planning.budget == "least" ||
      error.budget != std::max(Bytes{}, parse_bytes(*planning.budget) - beside.total()))
    throw;  // about a level's own budget
  // The error is of the first level that does not keep the budget; another level may need more.
  for (auto& [name, level] : options.levels) level.budget.reset();
  const auto task = workloads::make_multilevel(options);
  mlo::Engine engine(task->problems(), task->dependencies(),
                     engine_config(planning, options.common.seed, rates));
  const Bytes least = engine.least_budget();
  LeastBudgets kept = error.kept;
  for (KeptBudget* budget : {&kept.least, &kept.fast})
    budget->bytes = std::max(budget->bytes, least);
  throw MemoryError(explained(error.budget, kept, planning, beside));
}

void require_recomputation(const PlanningOptions& planning,
                           const workloads::MultilevelOptions& given,
                           const mlo::Engine::WholePlan& plan) {
  const std::string& workload = given.common.name;
  std::vector<const Plan*> others;  // of levels that use --recompute
  for (const auto& [name, own] : given.levels) {
    std::vector<const Plan*> plans;
    for (const auto& level : plan.levels)
      if (level.problem == name) plans.push_back(&level.plan);
    if (own.recompute)
      require_effect(fmt::format("--{}.recompute", name), *own.recompute,
                     fmt::format("the level {} of {}", name, workload), plans);
    else
      others.insert(others.end(), plans.begin(), plans.end());
  }
  if (planning.recompute && !others.empty())
    require_effect("--recompute", Recompute::parse(*planning.recompute), workload, others);
}

Bytes fixed_cost(const workloads::MultilevelOptions& options, const PlanningOptions& planning) {
  if (!planning.whole_process) return {};
  const auto task = workloads::make_multilevel(resolved(options, planning, Bytes{}));
  Bytes ahead;
  for (std::size_t level = 0; level < task->problems().size(); ++level)
    ahead += loader_bytes(*task->test, workloads::training_loader(task->batch_size, 0, {}));
  return measure_fixed_cost(planning, ahead);
}

std::optional<Bytes> whole_budget(const workloads::MultilevelOptions& options,
                                  const PlanningOptions& planning, Bytes evaluation) {
  if (!planning.budget) return {};
  Bytes most;
  for (const auto& [name, level] : options.levels)
    most = std::max(most, level.budget.value_or(Bytes{}));
  return most + evaluation;
}

Bytes kept_by_evaluation(const workloads::MultilevelOptions& options,
                         const PlanningOptions& planning) {
  const auto task = workloads::make_multilevel(resolved(options, planning, Bytes{}));
  return evaluation_keeps(task->model(), metrics_of(*task), *task->test);
}

report::SourceLines sources_of(workloads::MultilevelWorkload& task) {
  report::SourceLines sources;
  for (const mlo::Problem* problem : task.problems()) sources.add(problem->module());
  return sources;
}

std::int64_t parameters_of(workloads::MultilevelWorkload& task) {
  std::int64_t count = 0;
  for (const mlo::Problem* problem : task.problems()) count += problem->module().parameter_count();
  return count;
}

LinkTraffic link_traffic(const mlo::Engine::WholePlan& plan, const Rates& rates) {
  LinkTraffic whole;
  double sent = 0.0, collectives = 0.0, exchanges = 0.0;
  for (const auto& level : plan.levels) {
    const LinkTraffic one = link_traffic(level.plan, rates);
    sent += level.runs * static_cast<double>(one.sent.count);
    collectives += level.runs * static_cast<double>(one.collectives);
    exchanges += level.runs * static_cast<double>(one.exchanges);
    whole.predicted_ms += level.runs * one.predicted_ms;
    whole.exposed_ms += level.runs * one.exposed_ms;
    for (const auto& [name, kind] : one.kinds) {
      LinkTraffic::Kind& sum = whole.kinds[name];
      sum.calls += level.runs * kind.calls, sum.sent += level.runs * kind.sent;
      sum.predicted_ms += level.runs * kind.predicted_ms;
      sum.exposed_ms += level.runs * kind.exposed_ms;
      for (const auto& [op, waiter] : kind.waiters) sum.waiters[op].add(waiter, level.runs);
    }
  }
  whole.sent = Bytes{std::llround(sent)};
  whole.collectives = static_cast<decltype(whole.collectives)>(std::llround(collectives));
  whole.exchanges = std::llround(exchanges);
  return whole;
}

Json plan_fields(const mlo::Engine::WholePlan& plan) {
  Json levels = Json::array();
  for (const auto& level : plan.levels) {
    Json fields{{"problem", level.problem}};
    fields.update(plan_fields(level.plan));
    levels.push_back(std::move(fields));
  }
  return {{"planned_peak_bytes", plan.peak.count},
          {"arena_bytes", plan.arena.count},
          {"persistent_bytes", plan.persistent.count},
          {"peak_by_category", by_category(plan.together.at_peak)},
          {"predicted_step_ms", plan.together.predicted_ms},
          {"levels", std::move(levels)}};
}

std::string plan_summary(const mlo::Engine::WholePlan& plan) {
  std::string text =
      fmt::format("peak {} = {} bytes: arena {}, kept {}\n", to_string(plan.peak), plan.peak.count,
                  to_string(plan.arena), to_string(plan.persistent));
  for (const auto& level : plan.levels)
    text += fmt::format("\n{}: {}", level.problem, plan_summary(level.plan));
  return text;
}

}  // namespace ebb::cli
