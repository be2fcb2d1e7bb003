#include "cli/multilevel_verbs.h"

#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/run_loop.h"
#include "cli/waiting.h"
#include "ebb/workloads/multilevel.h"

namespace ebb::cli {
namespace {

// A workload and the engine that runs it.
struct Running {
  Running(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
          const Rates& rates)
      : task(workloads::make_multilevel(options)),
        engine(task->problems(), task->dependencies(),
               engine_config(planning, options.common.seed, rates)) {}

  std::unique_ptr<workloads::MultilevelWorkload> task;
  mlo::Engine engine;
};

workloads::MultilevelOptions within(workloads::MultilevelOptions options,
                                    std::optional<Bytes> budget) {
  for (const std::string& name : workloads::level_names(options.common.name)) {
    options.levels[name].budget = budget;
    options.levels[name].recompute = budget_rule(budget);
  }
  return options;
}

}  // namespace

Plannable plannable_levels(const workloads::MultilevelOptions& options,
                           const PlanningOptions& planning, const Rates& rates) {
  PlanningOptions free = planning;
  free.budget.reset(), free.recompute.reset(), free.tries_budgets = true;
  const workloads::MultilevelOptions all = resolved(options, free, {});
  return {[all, free, rates](std::optional<Bytes> budget) {
            return Running(within(all, budget), free, rates).engine.plan().together;
          },
          [all, free, rates] { return Running(all, free, rates).engine.least_budget(); }};
}

mlo::Engine::WholePlan plan_levels(const workloads::MultilevelOptions& options,
                                   const PlanningOptions& planning, const Rates& rates,
                                   const Beside& beside) {
  const workloads::MultilevelOptions all = resolved(options, planning, beside.total());
  return within_whole(all, planning, rates, beside,
                      [&] { return Running(all, planning, rates).engine.plan(); });
}

LevelsProfile profile_levels(const workloads::MultilevelOptions& options,
                             const PlanningOptions& planning, const Rates& rates, int warm_up,
                             int steps, bool overcommit) {
  std::optional<Waiting> waiting(std::in_place, "planning");
  const Beside beside{.evaluation = {}, .fixed = fixed_cost(options, planning)};
  workloads::MultilevelOptions all = resolved(options, planning, beside.fixed);
  settle_budget(all, planning, rates);
  const MemoryMeter meter(device_of(planning));
  Running running(all, planning, rates);
  LevelsProfile result;
  result.plan = within_whole(all, planning, rates, beside, [&] { return running.engine.plan(); });
  require_recomputation(planning, options, result.plan);
  result.budget = whole_budget(all, planning, {}), result.fixed = beside.fixed;
  waiting.reset();
  require_memory(result.plan.peak, device_of(planning), overcommit);
  for (int i = 0; i < warm_up + steps; ++i) {
    const Stopwatch watch;
    running.engine.train_step();
    if (i >= warm_up) result.step_ms.push_back(watch.ms());
  }
  const Measured measured = meter.read(running.engine.leaves(), running.engine.resident());
  result.measured = measured.total, result.transient = measured.transient();
  result.staying = measured.staying;
  result.sources = sources_of(*running.task);
  result.parameters = parameters_of(*running.task), result.batch = running.task->batch_size;
  return result;
}

}  // namespace ebb::cli
