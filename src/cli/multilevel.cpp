#include "cli/multilevel.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/evaluation.h"
#include "cli/interrupt.h"
#include "cli/level_rules.h"
#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/multilevel_planning.h"
#include "cli/outputs.h"
#include "cli/process_memory.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/arena.h"
#include "ebb/machine.h"
#include "ebb/report/progress.h"
#include "ebb/threads.h"
#include "ebb/train/non_finite.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

class Training {
 public:
  Training(const TrainCommand& command, const std::optional<SavedRun>& saved)
      : options_(command.task), planning_(command.planning), command_(command), saved_(saved) {}

  // The exit code.
  int run() {
    const Rates rates = planning_.needs_rates() ? rates_for(planning_) : Rates{};
    const Bytes fixed = fixed_cost(options_, planning_);
    std::optional<PinnedThreads> pinned;
    if (planning_.machine.pin_threads) pinned.emplace();
    if (command_.eval_batches > 0) beside_ = kept_by_evaluation(options_, planning_);
    workloads::MultilevelOptions all = resolved(options_, planning_, fixed + beside_);
    settle_budget(all, planning_, rates);
    const MemoryMeter meter(all.common.device);
    task_ = workloads::make_multilevel(all);
    mlo::EngineConfig config = engine_config(planning_, all.common.seed, rates);
    config.train_iters = command_.steps;
    engine_ = std::make_unique<mlo::Engine>(task_->problems(), task_->dependencies(), config);
    plan_ = engine_->plan();
    plan_evaluation(config.compile, all);
    peak_ = evaluation_ ? std::max(plan_.peak, evaluation_->peak()) : plan_.peak;
    require_memory(peak_, all.common.device, command_.overcommit);
    io::Notes notes;
    if (command_.checkpoint) {
      workloads::TrainSpec spec = spec_of(command_);
      fill_in(spec, *task_);
      const auto data = workloads::data_fingerprint(options_.common.data, *task_->test);
      if (saved_) {
        require_same(*saved_, command_, spec, data);
        engine_->load(saved_->file);
      }
      notes = notes_of(spec, data);
    }
    Outputs outputs(command_);
    outputs.keep_by(
        [&](const fs::path& file, const io::Notes& own) {
          require_finite_weights();
          engine_->save(file, own);
        },
        std::move(notes), plan_.persistent, engine_->global_step());
    if (const int signal = train(outputs)) return 128 + signal;
    outputs.keep(engine_->global_step());
    if (evaluation_) eval_ = evaluation_->run();
    const Measured taken = meter.read(engine_->leaves(), engine_->resident());
    // On a GPU the driver's figure has what evaluation keeps in it.
    const bool on_cuda = all.common.device.kind == Device::Kind::cuda;
    measured_ = on_cuda ? taken.total : taken.total + beside_, fixed_ = meter.beside(taken);
    kept_ = kept_budget(planning_, whole_budget(all, planning_, beside_), measured_);
    machine_ = engine_->arena()->report();
    if (pinned) machine_.pinned_threads = pinned->grant();
    return outputs.close() ? success : failure;
  }

  void print() const {
    fmt::print("{}: {} parameters, batch {}, {} updates of {:.1f} ms\n", options_.common.name,
               parameters_of(*task_), task_->batch_size, losses_.size(), step_ms_);
    for (const auto& [name, part] : task_->parts) fmt::print("{}: {}\n", name, to_string(part));
    fmt::print("loss {:.6g} at first, {:.6g} at last\n", losses_.front(), losses_.back());
    if (!eval_.empty())
      fmt::print("test loss {:.6g}, accuracy {:.2f}%\n", eval_[0], 100.0 * eval_[1]);
    if (task_->limit) fmt::print("best possible accuracy {:.6g}\n", task_->limit->value);
    fmt::print("peak {} as planned, {} resident, {} of the process beside it\n", to_string(peak_),
               to_string(measured_), to_string(fixed_));
    for (const auto& level : plan_.levels)
      fmt::print("  {:<12} peak {}, predicted {:.2f} ms an update\n", level.problem,
                 to_string(level.plan.peak), level.plan.predicted_ms);
    const MachineOptions& asked = planning_.machine;
    if (asked.huge_pages || asked.lock_memory || asked.pin_threads)
      fmt::print("{}", to_string(machine_));
  }

  Json as_json() const {
    Json result{{"workload", options_.common.name},
                {"classifier", workloads::classifier_of(options_)},
                {"device", planning_.device},
                {"threads", threads()},
                {"params", parameters_of(*task_)},
                {"batch", task_->batch_size},
                {"data", data_fields(task_->parts)},
                {"steps", command_.steps},
                {"losses", losses_},
                {"step_ms", step_ms_},
                {"measured_peak_bytes", measured_.count},
                {"fixed_bytes", fixed_.count},
                {"process_peak_bytes", process_peak().count}};
    result.update(plan_fields(plan_));
    result["planned_peak_bytes"] = peak_.count;  // of steps and evaluation
    if (evaluation_)
      result["eval_items"] = evaluation_->items(), result["eval_batch"] = evaluation_->part();
    if (kept_.budget) result["budget_exceeded"] = kept_.exceeded();
    if (!eval_.empty()) result["eval_loss"] = eval_[0], result["eval_accuracy"] = eval_[1];
    if (task_->limit) result["best_accuracy"] = task_->limit->value;
    return result;
  }

  int code() const { return kept_.report(); }

 private:
  void require_finite(std::int64_t step) const {
    if (planning_.on_nan == "ignore") return;
    for (const mlo::Problem* problem : task_->problems()) {
      const auto loss = problem->last().find("loss");
      if (loss == problem->last().end() || std::isfinite(loss->second)) continue;
      const auto path = non_finite_variable(problem->module());
      throw NotFinite(
          fmt::format("step {}: the loss of the level \"{}\" is {}{}; --on-nan ignore goes on",
                      step, problem->name(), text_of_non_finite(loss->second),
                      path ? fmt::format(", and its \"{}\" is not finite", *path) : ""));
    }
  }

  void require_finite_weights() const {
    if (planning_.on_nan == "ignore") return;
    for (const mlo::Problem* problem : task_->problems())
      if (const auto path = non_finite_variable(problem->module()))
        throw NotFinite(
            fmt::format("\"{}\" of the level \"{}\" is not finite after the last step, so that "
                        "it is not saved; "
                        "--on-nan ignore goes on",
                        *path, problem->name()));
  }

  int train(Outputs& outputs) {
    report::Progress progress(command_.steps, {.label = options_.common.name});
    mlo::Problem& lowest = *task_->problems().front();
    std::vector<double> times;  // of updates of the lowest level, with what follows above
    double since_update = 0.0;
    const Interrupt interrupt;
    std::int64_t step = engine_->global_step();
    try {
      while (step < command_.steps && !interrupt.asked()) {
        const Clock::time_point begin = Clock::now();
        engine_->train_step();
        since_update += std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
        step = engine_->global_step();
        if (lowest.count() % lowest.config().gradient_accumulation == 0) {
          times.push_back(std::exchange(since_update, 0.0));
          losses_.push_back(std::stod(fmt::format("{:.9g}", lowest.last().at("loss"))));
          progress.update(step, losses_.back(), plan_.peak);
        }
        require_finite(step);
        for (const mlo::Problem* problem : task_->problems())
          for (const auto& [key, value] : problem->last())
            outputs.log(problem->name() + "/" + key, step, value);
        outputs.after_step(step, losses_.empty() ? 0.0 : losses_.back());
      }
    } catch (const NotFinite&) {
      progress.finish();
      tell_not_finite(outputs);
      throw;
    } catch (...) {
      progress.finish();
      // A step takes batches and moves counters of several levels, one after the other.
      keep_last_whole_step(outputs, step, false);
      throw;
    }
    progress.finish();
    if (interrupt.asked() && step < command_.steps) {
      tell_interruption(outputs, step, command_.steps);
      return interrupt.signal();
    }
    if (losses_.empty())
      throw UsageError(fmt::format("--steps {} ends before the first update", command_.steps));
    // The first steps touch memory for the first time.
    const std::size_t warm = std::min<std::size_t>(times.size() - 1, 3);
    step_ms_ = median({times.begin() + static_cast<std::ptrdiff_t>(warm), times.end()});
    return 0;
  }

  // With everything that a level may take, so that evaluation stays within what is told.
  void plan_evaluation(const CompileOptions& engine, const workloads::MultilevelOptions& all) {
    if (command_.eval_batches == 0) return;
    CompileOptions compile = engine;
    compile.arena = engine_->arena();
    evaluation_.emplace(
        task_->model(), [this](const Batch& b) { return task_->judge(b); }, task_->test,
        task_->batch_size, command_.eval_batches, compile,
        TrainingMemory{plan_.arena, plan_.persistent, plan_.together,
                       whole_budget(all, planning_, beside_)});
  }

  const workloads::MultilevelOptions& options_;
  const PlanningOptions& planning_;
  const TrainCommand& command_;
  const std::optional<SavedRun>& saved_;
  std::unique_ptr<workloads::MultilevelWorkload> task_;
  std::unique_ptr<mlo::Engine> engine_;
  mlo::Engine::WholePlan plan_;
  MachineReport machine_;
  Bytes measured_, fixed_, peak_, beside_;
  Kept kept_;
  std::optional<Evaluation> evaluation_;
  std::vector<double> losses_, eval_;
  double step_ms_ = 0.0;
};

}  // namespace

workloads::TrainSpec multilevel_spec(const TrainCommand& command) {
  refuse_single_level_options(command);
  device_options(command.planning, {});  // what it refuses is refused here
  const auto task = workloads::make_multilevel(resolved(command.task, command.planning, {}));
  workloads::TrainSpec spec = spec_of(command);
  fill_in(spec, *task);
  return spec;
}

int train_multilevel(const TrainCommand& command, const std::optional<SavedRun>& saved,
                     Output output) {
  refuse_single_level_options(command);
  Training training(command, saved);
  const int code = training.run();
  if (code > 128) return code;
  if (output == Output::json)
    std::cout << json_text(training.as_json()) << "\n";
  else
    training.print();
  return code == success ? training.code() : code;
}

int plan_multilevel(const workloads::MultilevelOptions& options, const PlanningOptions& planning,
                    Output output) {
  const Rates rates = rates_for(planning);
  const Bytes fixed = fixed_cost(options, planning);
  workloads::MultilevelOptions all = resolved(options, planning, fixed);
  settle_budget(all, planning, rates);
  const auto task = workloads::make_multilevel(all);
  mlo::Engine engine(task->problems(), task->dependencies(),
                     engine_config(planning, all.common.seed, rates));
  const mlo::Engine::WholePlan plan = engine.plan();
  Json memory;
  warn_if_too_large(plan.peak + fixed, planning, rates, memory);
  if (output == Output::json) {
    Json result{{"workload", options.common.name},
                {"classifier", workloads::classifier_of(options)},
                {"device", rates.name},
                {"params", parameters_of(*task)},
                {"batch", task->batch_size}};
    result.update(plan_fields(plan));
    result.update(memory);
    std::cout << json_text(result) << "\n";
    return success;
  }
  fmt::print("{}: {} parameters, batch {}, on {}\n", options.common.name, parameters_of(*task),
             task->batch_size, rates.name);
  fmt::print("{}", plan_summary(plan));
  return success;
}

}  // namespace ebb::cli
