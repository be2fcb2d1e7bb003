#include "cli/multilevel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
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
#include "cli/numbers.h"
#include "cli/outputs.h"
#include "cli/process_memory.h"
#include "cli/verb.h"
#include "core/json.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/machine.h"
#include "ebb/optim/by_name.h"
#include "ebb/report/progress.h"
#include "ebb/threads.h"
#include "ebb/train/non_finite.h"
#include "ebb/workloads/settings.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// An option whose text the library reads; what it cannot read is a wrong command.
template <class Read>
CLI::Option* add_read(CLI::App& app, const std::string& name, const std::string& help,
                      const Read& read) {
  return app.add_option_function<std::string>(
      name,
      [name = name.substr(0, name.find(',')), read](const std::string& text) {
        try {
          read(text);
        } catch (const Error& error) {
          throw CLI::ValidationError(name, error.what());
        }
      },
      help);
}

void add_level_options(CLI::App& app, const std::string& level, workloads::LevelOptions& o,
                       LevelSettings settings) {
  const std::string prefix = "--" + level + ".", group = std::string(level_group) + level;
  const auto count = [&](const char* name, std::optional<std::int64_t>& value, const char* help) {
    app.add_option(prefix + name, value, help)->check(CLI::NonNegativeNumber)->group(group);
  };
  const auto number = [&](const char* name, std::optional<double>& value, const char* help) {
    app.add_option(prefix + name, value, help)->check(FiniteNumber::not_negative())->group(group);
  };
  add_read(app, prefix + (level == "classifier" ? "method,--method" : "method"),
           "How levels above differentiate through it",
           [&o](const std::string& text) { o.method = mlo::method_by_name(text); })
      ->type_name("METHOD")
      ->group(group);
  count("unroll", o.unroll, "Updates for each step of the levels above");
  count("warmup", o.warmup, "Steps before the levels above begin");
  count("iterations", o.iterations, "Of neumann and cg");
  number("alpha", o.alpha, "Of the method");
  number("lr", o.rate, "Learning rate");
  number("clip", o.clip, "Scale gradients down to this norm");
  add_read(app, prefix + "optimizer", fmt::format("{}", fmt::join(optim::names(), ", ")),
           [&o](const std::string& text) { optim::by_name(text), o.optimizer = text; })
      ->type_name("NAME")
      ->group(group);
  if (settings == LevelSettings::problem) return;
  count("accumulate", o.accumulate, "Batches for each update");
  add_read(app, prefix + "precision", "As --precision, for this level",
           [&o](const std::string& text) { o.precision = precision_by_name(text); })
      ->type_name("NAME")
      ->group(group);
  add_read(app, prefix + "recompute", "As --recompute, for this level",
           [&o](const std::string& text) { o.recompute = Recompute::parse(text); })
      ->type_name("RULE")
      ->group(group);
  add_read(app, prefix + "budget", "Bytes for everything while this level runs",
           [&o](const std::string& text) { o.budget = parse_bytes(text); })
      ->type_name("SIZE")
      ->group(group);
}

// What is said for the whole goes to every level that says nothing itself.
workloads::MultilevelOptions resolved(workloads::MultilevelOptions options,
                                      const PlanningOptions& planning, Bytes fixed) {
  refuse_single_level_options(options.common.name, planning);
  options.common.device = device_of(planning);
  std::vector<Precision> precisions;
  for (const std::string& name : workloads::level_names(options.common.name)) {
    workloads::LevelOptions& level = options.levels[name];
    if (planning.recompute && !level.recompute)
      level.recompute = Recompute::parse(*planning.recompute);
    if (planning.precision != "fp32" && !level.precision)
      level.precision = precision_by_name(planning.precision);
    precisions.push_back(level.precision.value_or(Precision::fp32));
    level.form = form_of(planning, precisions.back());
    if (planning.budget && planning.budget != "least" && !level.budget) {
      const Bytes budget = parse_bytes(*planning.budget);
      if (budget <= fixed)
        throw MemoryError(
            fmt::format("a budget of {} for the whole process cannot be kept: its "
                        "fixed cost alone is {}",
                        to_string(budget), to_string(fixed)));
      level.budget = budget - fixed;
    }
  }
  check_forms(planning, precisions);
  if (!options.common.layout &&
      uses(options, workloads::Setting::layout)) {  // as suits the lowest level, where the
                                                    // classifier is trained
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
  return config;
}

// Where the least budget is asked for, finds it and gives it to every level without one of its own.
void settle_budget(workloads::MultilevelOptions& options, const PlanningOptions& planning,
                   const Rates& rates) {
  if (planning.budget != "least") return;
  for (const auto& [name, level] : options.levels)
    if (level.recompute && level.recompute->mode != Recompute::Mode::automatic && !level.budget)
      throw UsageError(fmt::format(
          "--budget least is the least that --recompute auto reaches, but the level {} has {}",
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

// Of the process, with the data in memory and batches of both levels ahead.
Bytes fixed_cost(const workloads::MultilevelOptions& options, const PlanningOptions& planning) {
  if (!planning.whole_process) return {};
  const auto task = workloads::make_multilevel(resolved(options, planning, Bytes{}));
  Bytes ahead;
  for (std::size_t level = 0; level < task->problems().size(); ++level)
    ahead += loader_bytes(*task->test, workloads::training_loader(task->batch_size, 0, {}));
  return measure_fixed_cost(planning, ahead);
}

// What the whole may take, once all levels have budgets: that of the level with the largest. A
// budget of one level alone promises nothing for the others.
std::optional<Bytes> whole_budget(const workloads::MultilevelOptions& options,
                                  const PlanningOptions& planning, Bytes evaluation) {
  if (!planning.budget) return {};
  Bytes most;
  for (const auto& [name, level] : options.levels)
    most = std::max(most, level.budget.value_or(Bytes{}));
  return most + evaluation;
}

// What evaluation keeps beside the levels (evaluation_keeps).
Bytes kept_by_evaluation(const workloads::MultilevelOptions& options,
                         const PlanningOptions& planning) {
  const auto task = workloads::make_multilevel(resolved(options, planning, Bytes{}));
  return evaluation_keeps(
      task->model(), [&](const Batch& b) { return task->judge(b); }, *task->test);
}

Json plan_as_json(const mlo::Engine::WholePlan& plan) {
  Json levels = Json::array();
  for (const auto& level : plan.levels) {
    Json fields{{"problem", level.problem}};
    fields.update(plan_fields(level.plan));
    levels.push_back(std::move(fields));
  }
  return {{"planned_peak_bytes", plan.peak.count},
          {"arena_bytes", plan.arena.count},
          {"persistent_bytes", plan.persistent.count},
          {"predicted_step_ms", plan.together.predicted_ms},
          {"levels", std::move(levels)}};
}

void print_plan(const mlo::Engine::WholePlan& plan) {
  fmt::print("peak {} = {} bytes: arena {}, kept {}\n", to_string(plan.peak), plan.peak.count,
             to_string(plan.arena), to_string(plan.persistent));
  for (const auto& level : plan.levels)
    fmt::print("\n{}: {}", level.problem, plan_summary(level.plan));
}

std::int64_t parameters_of(workloads::MultilevelWorkload& task) {
  std::int64_t count = 0;
  for (const mlo::Problem* problem : task.problems()) count += problem->module().parameter_count();
  return count;
}

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
        const std::vector<std::string> changed = require_same(*saved_, command_, spec, data);
        std::map<std::string, io::SavedState> levels;
        for (const std::string& name : workloads::level_names(options_.common.name))
          levels[name] = saved_state(changed, name);
        engine_->load(saved_->file, levels);
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
    result.update(plan_as_json(plan_));
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
      keep_last_whole_step(outputs, step, engine_->intact());
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

void add_multilevel_options(CLI::App& app, workloads::MultilevelOptions& options,
                            LevelSettings settings) {
  const std::string group(several_group);
  app.add_option("--classifier", options.classifier,
                 fmt::format("What is trained on weighted data: {}",
                             fmt::join(workloads::classifier_names(), ", ")))
      ->check(CLI::IsMember(workloads::classifier_names()))
      ->group(group);
  app.add_option("--imbalance", options.imbalance,
                 "How many times fewer items the rarest class has")
      ->check(FiniteNumber::between(1.0, 1e6))
      ->default_str(fmt::format("{}", workloads::usual_imbalance))
      ->group(group);
  app.add_option("--meta", options.meta, "Items of the balanced set")
      ->check(CLI::PositiveNumber)
      ->default_str(fmt::format("{}", workloads::usual_meta))
      ->group(group);
  for (const std::string& workload : workloads::multilevel_names())
    for (const std::string& level : workloads::level_names(workload))
      add_level_options(app, level, options.levels[level], settings);
}

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
  const Bytes fixed = fixed_cost(options, planning), beside = kept_by_evaluation(options, planning);
  workloads::MultilevelOptions all = resolved(options, planning, fixed + beside);
  settle_budget(all, planning, rates);
  const auto task = workloads::make_multilevel(all);
  const mlo::EngineConfig config = engine_config(planning, all.common.seed, rates);
  mlo::Engine engine(task->problems(), task->dependencies(), config);
  const mlo::Engine::WholePlan plan = engine.plan();
  const Evaluation evaluation(
      task->model(), [&](const Batch& b) { return task->judge(b); }, task->test, task->batch_size,
      1, config.compile,
      TrainingMemory{plan.arena, plan.persistent, plan.together,
                     whole_budget(all, planning, beside)});
  const Bytes peak = std::max(plan.peak, evaluation.peak());
  Json memory;
  warn_if_too_large(peak + fixed, planning, rates, memory);
  if (output == Output::json) {
    Json result{{"workload", options.common.name},
                {"classifier", workloads::classifier_of(options)},
                {"device", rates.name},
                {"params", parameters_of(*task)},
                {"batch", task->batch_size}};
    result.update(plan_as_json(plan));
    result["planned_peak_bytes"] = peak.count;  // of steps and evaluation
    result["eval_batch"] = evaluation.part();
    result.update(memory);
    std::cout << json_text(result) << "\n";
    return success;
  }
  fmt::print("{}: {} parameters, batch {}, on {}\n", options.common.name, parameters_of(*task),
             task->batch_size, rates.name);
  print_plan(plan);
  return success;
}

}  // namespace ebb::cli
