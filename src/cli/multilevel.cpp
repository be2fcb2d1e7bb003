#include "cli/multilevel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/evaluation.h"
#include "cli/level_rules.h"
#include "cli/link_traffic.h"
#include "cli/memory_check.h"
#include "cli/multilevel_planning.h"
#include "cli/ranks.h"
#include "cli/run_loop.h"
#include "cli/tiers.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "core/json.h"
#include "ebb/train/non_finite.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class SeveralLevels : public Trainee {
 public:
  // `options` are those of all levels, with their budgets.
  SeveralLevels(const TrainCommand& command, const workloads::MultilevelOptions& options,
                const Rates& rates, const Beside& beside)
      : command_(command),
        budget_(whole_budget(options, command.planning, beside.evaluation)),
        beside_(beside.evaluation),
        fixed_(beside.fixed),
        rates_(rates),
        config_(engine_config(command.planning, options.common.seed, rates)),
        task_(workloads::make_multilevel(options)) {
    config_.train_iters = command.steps;
    plan_with_shared_tuning(command.planning, [&](const std::shared_ptr<const Tuning>& tuning) {
      if (tuning) config_.compile.plan.tuning = tuning;
      engine_ = std::make_unique<mlo::Engine>(task_->problems(), task_->dependencies(), config_);
      plan_ =
          within_whole(options, command.planning, rates, beside, [&] { return engine_->plan(); });
    });
    require_recomputation(command.planning, command.task, plan_);
    require_agreement(command.planning, *this, fingerprints());
  }

  Facts facts() const override {
    return {parameters_of(*task_), task_->batch_size, task_->parts, task_->limit};
  }

  // --- Memory

  TrainingMemory memory() const override {
    return {plan_.arena, plan_.persistent, plan_.together, budget_, fixed_};
  }
  Bytes kept_by_evaluation() const override { return beside_; }
  Evaluation evaluation(std::int64_t batches) override {
    CompileOptions compile = config_.compile;
    compile.arena = engine_->arena();
    return {task_->model(), metrics_of(*task_), task_->test, task_->batch_size, batches, compile,
            memory()};
  }
  const Arena& arena() const override { return *engine_->arena(); }
  Leaves leaves() override { return engine_->leaves(); }
  Bytes resident() override { return engine_->resident(); }

  // --- Checkpoints

  workloads::TrainSpec spec() const override {
    workloads::TrainSpec spec = spec_of(command_);
    fill_in(spec, *task_);
    return spec;
  }
  workloads::DataFingerprint data_fingerprint() const override {
    return workloads::data_fingerprint(command_.workload().data, *task_->test);
  }
  void restore(const SavedRun& saved, const std::vector<std::string>& changed) override {
    std::map<std::string, io::SavedState> levels;
    for (const mlo::Problem* problem : task_->problems())
      levels[problem->name()] = saved_state(changed, problem->name());
    engine_->load(saved.file, levels);
    step_ = engine_->global_step();
  }
  Bytes checkpoint_bytes() const override { return plan_.persistent; }
  void save_checkpoint(const fs::path& file, const io::Notes& notes) override {
    engine_->save(file, notes);
  }
  std::optional<std::string> non_finite_weight() const override {
    for (const mlo::Problem* problem : task_->problems())
      if (const auto path = non_finite_variable(problem->module()))
        return fmt::format("\"{}\" of the level \"{}\"", *path, problem->name());
    return {};
  }

  // --- Steps

  std::int64_t step() const override { return step_; }
  bool intact() const override { return engine_->intact(); }

  // Updates are counted at the lowest level; each includes the updates of higher levels that follow
  // it.
  StepTaken advance(Outputs& outputs) override {
    const Stopwatch watch;
    engine_->train_step();
    StepTaken taken{{}, watch.ms(), watch.processor_ms()};
    step_ = engine_->global_step();
    require_finite();
    const mlo::Problem& lowest = *task_->problems().front();
    if (lowest.count() % lowest.config().gradient_accumulation == 0)
      taken.loss = lowest.last().at("loss"), taken.rate = lowest.optimizer().rate();
    for (const mlo::Problem* problem : task_->problems()) {
      for (const auto& [key, value] : problem->last())
        outputs.log(problem->name() + "/" + key, step_, value);
      outputs.log(problem->name() + "/rate", step_, problem->optimizer().rate());
    }
    return taken;
  }

  // --- Report

  std::string_view counted() const override { return "updates"; }
  std::string data_text() const override {
    std::string text;
    for (const auto& [name, part] : task_->parts)
      text += fmt::format("{}: {}\n", name, to_string(part));
    return text;
  }
  std::string plan_text() const override {
    std::string text;
    for (const auto& level : plan_.levels)
      text += fmt::format("  {:<12} peak {}, predicted {:.2f} ms an update\n", level.problem,
                          to_string(level.plan.peak), level.plan.predicted_ms);
    text += tier_text(plan_.together);
    if (command_.planning.leaves) text += link_text(command_.planning, traffic(), rates_);
    return text;
  }
  Json fields() const override {
    Json fields{{"classifier", workloads::classifier_of(command_.task)}};
    fields.update(plan_fields(plan_));
    const TierUse use{engine_->held(), engine_->file_traffic()};
    if (const auto tiers = tier_fields(plan_.together, config_.compile, use); !tiers.empty())
      fields["tiers"] = tiers;
    if (command_.planning.leaves) fields.update(link_fields(command_.planning, traffic()));
    return fields;
  }
  std::string on_nan_hint() const override { return "--on-nan ignore goes on"; }

 private:
  LinkTraffic traffic() const { return link_traffic(plan_, rates_); }
  std::string fingerprints() const {
    std::string all;
    for (const auto& level : plan_.levels) all += plan_fingerprint(level.plan);
    return all;
  }

  static double loss_of(const mlo::Problem& problem) {
    const auto loss = problem.last().find("loss");
    return loss == problem.last().end() ? 0.0 : loss->second;
  }

  // Names the first level, in the order in which they ran, whose loss or weights are not finite.
  void require_finite() const {
    if (command_.planning.on_nan == "ignore") return;
    const std::vector<mlo::Problem*> problems = task_->problems();
    if (std::ranges::all_of(problems,
                            [](const mlo::Problem* p) { return std::isfinite(loss_of(*p)); }))
      return;
    LargestWeight below;  // of the levels that ran before, which the loss may read
    std::string its_level;
    for (const mlo::Problem* problem : problems) {
      const double loss = loss_of(*problem);
      const auto path = non_finite_variable(problem->module());
      if (!std::isfinite(loss) || path)
        throw NotFinite(fmt::format(
            "step {}: the loss of the level \"{}\" is {}{}{}; {}", step_, problem->name(),
            std::isfinite(loss) ? fmt::format("{:.4g}", loss) : text_of_non_finite(loss),
            path ? fmt::format(", and after the step its \"{}\" is not finite", *path) : "",
            below.path.empty() ? ""
                               : fmt::format("; the largest weight before it, {:.3g}, is in \"{}\" "
                                             "of the level \"{}\"",
                                             below.value, below.path, its_level),
            on_nan_hint()));
      if (const LargestWeight own = largest_weight(problem->module()); own.value > below.value)
        below = own, its_level = problem->name();
    }
  }

  const TrainCommand& command_;
  const std::optional<Bytes> budget_;  // of steps and evaluation
  const Bytes beside_, fixed_;         // kept by evaluation only; of the process
  const Rates rates_;
  mlo::EngineConfig config_;
  const std::unique_ptr<workloads::MultilevelWorkload> task_;
  std::unique_ptr<mlo::Engine> engine_;
  mlo::Engine::WholePlan plan_;
  std::int64_t step_ = 0;  // of the last complete step
};

}  // namespace

workloads::TrainSpec multilevel_spec(const TrainCommand& command) {
  refuse_single_level_options(command);
  device_options(command.planning, {});  // refuses invalid combinations early
  const auto task = workloads::make_multilevel(resolved(command.task, command.planning, {}));
  workloads::TrainSpec spec = spec_of(command);
  fill_in(spec, *task);
  return spec;
}

int train_multilevel(const TrainCommand& command, const std::optional<SavedRun>& saved,
                     Output output) {
  refuse_single_level_options(command);
  const PlanningOptions& planning = command.planning;
  const Rates rates = planning.needs_rates() ? shared_rates(planning) : Rates{};
  const Beside beside{
      command.eval_batches > 0 ? kept_by_evaluation(command.task, planning) : Bytes{},
      fixed_cost(command.task, planning)};
  workloads::MultilevelOptions all = resolved(command.task, planning, beside.total());
  {
    const Waiting waiting("planning");
    settle_budget(all, planning, rates);
  }
  return train_run(command, saved, output,
                   [&] { return std::make_unique<SeveralLevels>(command, all, rates, beside); });
}

int plan_multilevel(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
                    Output output) {
  const Rates rates = rates_for(planning);
  std::optional<Waiting> waiting(std::in_place, "planning");
  const Beside beside{kept_by_evaluation(options, planning), fixed_cost(options, planning)};
  workloads::MultilevelOptions all = resolved(options, planning, beside.total());
  settle_budget(all, planning, rates);
  const auto task = workloads::make_multilevel(all);
  const mlo::EngineConfig config = engine_config(planning, all.common.seed, rates);
  mlo::Engine engine(task->problems(), task->dependencies(), config);
  const mlo::Engine::WholePlan plan =
      within_whole(all, planning, rates, beside, [&] { return engine.plan(); });
  require_recomputation(planning, options, plan);
  const Evaluation evaluation(
      task->model(), metrics_of(*task), task->test, task->batch_size, 1, config.compile,
      TrainingMemory{plan.arena, plan.persistent, plan.together,
                     whole_budget(all, planning, beside.evaluation), beside.fixed});
  const Bytes peak = std::max(plan.peak, evaluation.peak());
  waiting.reset();
  Json memory;
  warn_if_too_large(peak + beside.fixed, planning, rates, memory);
  if (output == Output::json) {
    Json result{{"workload", options.common.name},
                {"classifier", workloads::classifier_of(options)},
                {"device", rates.name},
                {"params", parameters_of(*task)},
                {"batch", task->batch_size}};
    result.update(plan_fields(plan));
    if (const auto tiers = tier_fields(plan.together, config.compile); !tiers.empty())
      result["tiers"] = tiers;
    if (planning.leaves) result.update(link_fields(planning, link_traffic(plan, rates)));
    if (planning.whole_process) result["fixed_bytes"] = beside.fixed.count;
    result["planned_peak_bytes"] = peak.count;  // of steps and evaluation
    result["eval_batch"] = evaluation.part();
    result.update(memory);
    std::cout << json_text(result) << "\n";
    return success;
  }
  fmt::print("{}: {} parameters, batch {}, on {}\n", options.common.name, parameters_of(*task),
             task->batch_size, rates.name);
  if (planning.leaves) fmt::print("{}", link_text(planning, link_traffic(plan, rates), rates));
  fmt::print("{}{}", tier_text(plan.together), plan_summary(plan));
  return success;
}

}  // namespace ebb::cli
