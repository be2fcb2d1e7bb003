// `ebb train`: trains a workload and tells what it took.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/evaluation.h"
#include "cli/feed.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/multilevel.h"
#include "cli/outputs.h"
#include "cli/planning.h"
#include "cli/print_config.h"
#include "cli/process_memory.h"
#include "cli/resume.h"
#include "cli/train_command.h"
#include "cli/verb.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/io/plan_file.h"
#include "ebb/report/progress.h"
#include "ebb/train/train_step.h"
#include "train/trace_count.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Nine significant digits tell any two float32 losses apart.
double nine_digits(double value) { return std::stod(fmt::format("{:.9g}", value)); }

class Train : public Verb {
 public:
  Train() : Verb("train", "Train a workload on the CPU", "ebb train --workload lm --steps 200") {}

 protected:
  void configure(CLI::App& app) override {
    config_.attach(app);
    add_train_options(app, command_);
  }

  int run() override {
    const std::optional<SavedRun> saved = saved_run(app(), command_);
    if (command_.several_levels()) {
      if (command_.plan)
        throw UsageError("--plan runs one program; " + workload_.name + " has several");
      check_workload_options(command_.task);
      if (command_.print_config) return print_config(multilevel_spec(command_));
      return train_multilevel(command_, saved, json() ? Output::json : Output::text);
    }
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    if (command_.plan) {  // it stands for what a resumed run's planner was asked
      if (planning_.accumulate == "auto")
        throw UsageError("--plan is of one number of micro-batches; --accumulate auto chooses one");
      planning_.budget.reset(), planning_.recompute.reset();
      planning_.whole_process = false;
    }
    workload_ = placed(workload_, planning_);
    if (planning_.needs_rates() && !command_.print_config) rates_ = rates_for(planning_);
    std::optional<PinnedThreads> pinned;
    if (planning_.machine.pin_threads) pinned.emplace();
    const MemoryMeter meter(workload_.device);
    task_ = workloads::make_workload(workload_);
    if (planning_.accumulate != "auto")
      check_accumulation(std::stoll(planning_.accumulate), task_->batch_size);
    if (command_.save && !task_->saves)
      throw UsageError(
          fmt::format("--save: the workload {} has no Hugging Face form", workload_.name));
    if (command_.print_config) return print_config(single_level_spec());
    const data::LoaderOptions loading =
        workloads::training_loader(task_->batch_size, workload_.seed, workload_.device);
    data::Loader loader(task_->train, loading);
    if (planning_.whole_process)
      fixed_ = measure_fixed_cost(planning_, loader_bytes(*task_->train, loading));
    if (command_.eval_batches > 0)
      beside_ = evaluation_keeps(task_->model(), metrics_of(*task_), *task_->test);
    const std::vector<TensorType> types = loader.types().front();
    const std::unique_ptr<TrainStep> planned = planned_step(loading, types);
    TrainStep& step = *planned;
    io::Notes notes;
    if (command_.checkpoint) {
      workloads::TrainSpec spec = spec_of(command_);
      fill_in(spec, *task_, step.optimizer());
      spec.planning.accumulate = std::to_string(step.options().accumulate);
      const auto data = workloads::data_fingerprint(workload_.data, *task_->train);
      if (saved)
        restore(*saved, saved_state(require_same(*saved, command_, spec, data)), loader, step);
      notes = notes_of(spec, data);
    }
    const Plan& plan = step.plan(types);
    plan_evaluation(step, plan);
    peak_ = evaluation_ ? std::max(plan.peak, evaluation_->peak()) : plan.peak;
    require_memory(peak_, workload_.device, command_.overcommit);
    Outputs outputs(command_);
    Feed feed(loader);
    outputs.keep_by(
        [&](const fs::path& file, io::Notes own) {
          require_finite_weights();
          own["loader"] = text_of(feed.position());
          io::save_checkpoint(file, task_->model(), step, own);
        },
        std::move(notes), io::checkpoint_bytes(task_->model(), step), step.step());

    if (const int signal = train(feed, step, plan, outputs)) return 128 + signal;
    outputs.keep(step.step());
    if (evaluation_) eval_ = evaluation_->run();
    const Measured taken = meter.read(step.leaves(types), step.resident(types));
    // On a GPU the driver's figure has what evaluation keeps in it.
    const bool on_cuda = workload_.device.kind == Device::Kind::cuda;
    const Bytes measured = on_cuda ? taken.total : taken.total + beside_,
                fixed = meter.beside(taken);
    machine_ = step.arena()->report();
    if (pinned) machine_.pinned_threads = pinned->grant();
    if (command_.save) {
      require_finite_weights();
      task_->save(*command_.save);
    }
    const Kept kept = kept_budget(planning_, whole_budget(step.options().compile), measured);
    report(plan, measured, fixed, kept);
    return outputs.close() ? kept.report() : failure;
  }

 private:
  workloads::TrainSpec single_level_spec() const {
    device_options(planning_, rates_), step_options(planning_);  // what they refuse is refused here
    workloads::TrainSpec spec = spec_of(command_);
    fill_in(spec, *task_, optimizer_of(*task_, planning_, command_.rate));
    return spec;
  }

  int print_config(const workloads::TrainSpec& spec) const {
    std::cout << config_text(app(), command_, spec);
    return success;
  }

  // Without the number of micro-batches.
  TrainOptions train_options() const {
    TrainOptions options = step_options(planning_);
    const std::int64_t rest = std::max<std::int64_t>(1, command_.steps - command_.warmup);
    optim::SchedulePtr schedule = command_.schedule == "cosine"   ? optim::cosine(rest, 0.1)
                                  : command_.schedule == "linear" ? optim::linear_decay(rest)
                                                                  : optim::constant();
    options.schedule =
        command_.warmup > 0 ? optim::linear_warmup(command_.warmup, schedule) : schedule;
    options.compile = compile_options(planning_, workload_.seed, rates_, fixed_, beside_);
    if (command_.plan)
      options.compile.planner = [file = *command_.plan](const Graph& graph) {
        return io::load_plan(file, graph);
      };
    return options;
  }

  std::unique_ptr<TrainStep> make_step(const TrainOptions& options) const {
    return std::make_unique<TrainStep>(
        task_->model(), optimizer_of(*task_, planning_, command_.rate),
        [this](const Batch& b) { return task_->loss(b); }, options);
  }

  using Types = std::vector<TensorType>;

  // The step with its plan, which is made once, with two exceptions: the least budget is found
  // before it can be planned with, and planning itself may take memory that a budget for the whole
  // process has no room for.
  std::unique_ptr<TrainStep> planned_step(const data::LoaderOptions& loading, const Types& types) {
    TrainOptions options = train_options();
    std::unique_ptr<TrainStep> step = chosen_step(options, types);
    if (!planning_.whole_process) return step;
    fixed_ = measure_fixed_cost(planning_, loader_bytes(*task_->train, loading));
    const std::int64_t parts = step->options().accumulate;
    options = train_options(), options.accumulate = parts;
    if (step->plan(types).peak <= *options.compile.plan.budget) return step;
    step = make_step(options);
    plan(*step, types);
    return step;
  }

  std::unique_ptr<TrainStep> chosen_step(TrainOptions options, const Types& types) const {
    if (planning_.accumulate == "auto" && planning_.budget != "least") {
      std::map<std::int64_t, std::unique_ptr<TrainStep>> tried;
      options.accumulate = fastest_parts(task_->batch_size, [&](std::int64_t parts) {
        options.accumulate = parts;
        return (tried[parts] = make_step(options))->plan(types).predicted_ms;
      });
      plan(*tried.at(options.accumulate),
           types);  // made already, unless no number keeps the budget
      return std::move(tried.at(options.accumulate));
    }
    options.accumulate = accumulation(*task_, planning_, options.compile);
    std::unique_ptr<TrainStep> step = make_step(options);
    if (planning_.budget == "least") {
      settle_budget(planning_, step->trace(types), options.compile);
      step = make_step(options);
    }
    plan(*step, types);
    return step;
  }

  // An error tells what would help.
  void plan(TrainStep& step, const Types& types) const {
    try {
      step.plan(types);
    } catch (const BudgetError&) {
      plan_or_explain(workload_, planning_, step.trace(types), step.options().compile);
      throw;
    }
  }

  void restore(const SavedRun& saved, io::SavedState state, data::Loader& loader,
               TrainStep& step) const {
    const io::Notes notes = io::load_checkpoint(saved.file, task_->model(), step, state);
    const auto position = notes.find("loader");
    if (position == notes.end())
      throw FileError(fmt::format("{}: the data's position is missing", saved.file.string()));
    try {
      loader.restore(
          position_near(loader.save(), loader_state(position->second), loader.batches()));
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}", saved.file.string(), error.what()));
    }
  }

  // Gradients may overflow where losses do not, and with them the weights.
  void require_finite_weights() const {
    if (planning_.on_nan == "ignore") return;
    if (const auto path = non_finite_variable(task_->model()))
      throw NotFinite(
          fmt::format("\"{}\" is not finite after the last step, so that it is not saved; "
                      "--on-nan skip "
                      "leaves out steps whose gradients are not finite, --on-nan ignore goes on",
                      *path));
  }

  void require_finite(const StepResult& result, const Batch& batch, TrainStep& step) const {
    if (planning_.on_nan != "stop") return;
    const bool loss = !std::isfinite(result.loss), norm = planning_.clip &&
                                                          planning_.precision != "fp16" &&
                                                          !std::isfinite(result.gradient_norm);
    if (!loss && !norm) return;
    const std::optional<NonFinite> found = step.find_non_finite(batch);
    throw NotFinite(fmt::format(
        "step {}: the {} is {}; what is not finite first is {}; --on-nan skip leaves such steps "
        "out, --on-nan ignore goes on",
        step.step(), loss ? "loss" : "norm of the gradients",
        text_of_non_finite(loss ? result.loss : result.gradient_norm),
        found ? to_string(*found) : "not found: computed again, all values are finite"));
  }

  // Steps until all are taken or a signal asks to stop, which is then the result.
  int train(Feed& feed, TrainStep& step, const Plan& plan, Outputs& outputs) {
    report::Progress progress(command_.steps, {.label = workload_.name});
    std::vector<double> times, processor_times;
    const Interrupt interrupt;
    try {
      while (step.step() < command_.steps && !interrupt.asked()) {
        const Batch batch = feed.take();
        const bool ahead =
            plan.device.kind == Device::Kind::cuda && step.step() + 1 < command_.steps;
        const Clock::time_point begin = Clock::now();
        const std::clock_t processor_begin = std::clock();
        const StepResult result = step(batch, [&] {
          if (!ahead) return;
          if (const Batch* next = feed.prefetch()) step.expect(*next);
        });
        require_finite(result, batch, step);
        feed.done();
        processor_times.push_back(1e3 * static_cast<double>(std::clock() - processor_begin) /
                                  CLOCKS_PER_SEC);
        times.push_back(milliseconds_since(begin));
        losses_.push_back(result.loss);
        outputs.log("loss", step.step(), result.loss);
        outputs.log("rate", step.step(), result.rate);
        if (planning_.clip) outputs.log("gradient_norm", step.step(), result.gradient_norm);
        if (result.skipped) ++skipped_;
        loss_scale_ = result.loss_scale;
        if (planning_.precision == "fp16") outputs.log("loss_scale", step.step(), loss_scale_);
        progress.update(step.step(), result.loss, plan.peak);
        outputs.after_step(step.step(), result.loss);
      }
    } catch (const NotFinite&) {
      progress.finish();
      tell_not_finite(outputs);
      throw;
    } catch (...) {
      progress.finish();
      keep_last_whole_step(outputs, step.step(), step.intact());
      throw;
    }
    progress.finish();
    if (interrupt.asked() && step.step() < command_.steps) {
      tell_interruption(outputs, step.step(), command_.steps);
      return interrupt.signal();
    }
    // The first steps touch memory for the first time.
    const std::size_t warm = std::min<std::size_t>(times.size() - 1, 3);
    const auto usual = [&](const std::vector<double>& all) {
      return median({all.begin() + static_cast<std::ptrdiff_t>(warm), all.end()});
    };
    step_ms_ = usual(times), processor_ms_ = usual(processor_times);
    return 0;
  }

  void plan_evaluation(const TrainStep& step, const Plan& plan) {
    if (command_.eval_batches == 0) return;
    CompileOptions compile = step.options().compile;
    compile.arena = step.arena();
    evaluation_.emplace(task_->model(), metrics_of(*task_), task_->test, task_->batch_size,
                        command_.eval_batches, compile,
                        TrainingMemory{plan.arena(), plan.persistent, plan, whole_budget(compile)});
  }

  // That of steps and evaluation together.
  std::optional<Bytes> whole_budget(const CompileOptions& compile) const {
    if (!compile.plan.budget) return {};
    return *compile.plan.budget + beside_;
  }

  void report(const Plan& plan, Bytes measured, Bytes fixed, const Kept& kept) const {
    if (json()) {
      Json result = as_json(plan, measured, fixed);
      if (kept.budget) result["budget_exceeded"] = kept.exceeded();
      std::cout << json_text(result) << "\n";
      return;
    }
    fmt::print("{}: {} parameters, batch {}, {} steps of {:.1f} ms\n", workload_.name,
               task_->model().parameter_count(), task_->batch_size, losses_.size(), step_ms_);
    fmt::print("trained on {}\ntested on {}\n", to_string(task_->train_part),
               to_string(task_->test_part));
    fmt::print("loss {:.6g} at first, {:.6g} at last\n", losses_.front(), losses_.back());
    if (planning_.precision == "fp16")
      fmt::print("{} of the steps skipped, loss scale {} at last\n", skipped_, loss_scale_);
    else if (skipped_ > 0)
      fmt::print("{} of the steps skipped, as they were not finite\n", skipped_);
    if (!eval_.empty())
      fmt::print("test loss {:.6g}{}\n", eval_[0],
                 eval_.size() > 1 ? fmt::format(", accuracy {:.2f}%", 100.0 * eval_[1]) : "");
    if (task_->limit)
      fmt::print("best possible {} {:.6g}\n",
                 task_->limit->kind == workloads::Limit::Kind::loss ? "loss" : "accuracy",
                 task_->limit->value);
    fmt::print(
        "peak {} as planned, {} resident, {} of the process beside it; planned in {:.1f} ms\n",
        to_string(peak_), to_string(measured), to_string(fixed), plan.made_in_ms);
    if (plan.recomputed_nodes() > 0)
      fmt::print(
          "{} of {} instructions run again: {:.3f} × the time of keeping all, as predicted\n",
          plan.recomputed_nodes(), plan.instructions.size(), plan.overhead());
    const MachineOptions& asked = planning_.machine;
    if (asked.huge_pages || asked.lock_memory || asked.pin_threads)
      fmt::print("{}", to_string(machine_));
  }

  Json as_json(const Plan& plan, Bytes measured, Bytes fixed) const {
    std::vector<double> losses;
    for (double loss : losses_) losses.push_back(nine_digits(loss));
    Json result{{"workload", workload_.name},
                {"device", planning_.device},
                {"threads", threads()},
                {"params", task_->model().parameter_count()},
                {"batch", task_->batch_size},
                {"precision", planning_.precision},
                {"data", data_fields({{"train", task_->train_part}, {"test", task_->test_part}})},
                {"steps", command_.steps},
                {"losses", losses},
                {"step_ms", step_ms_},
                {"step_processor_ms", processor_ms_},
                {"measured_peak_bytes", measured.count},
                {"fixed_bytes", fixed.count},
                {"process_peak_bytes", process_peak().count},
                {"traced_steps", traced_steps().load()}};
    result.update(plan_fields(plan));
    result["planned_peak_bytes"] = peak_.count;  // of steps and evaluation
    if (evaluation_)
      result["eval_items"] = evaluation_->items(), result["eval_batch"] = evaluation_->part();
    if (planning_.precision == "fp16" || planning_.on_nan == "skip")
      result["skipped_steps"] = skipped_;
    if (planning_.precision == "fp16") result["loss_scale"] = loss_scale_;
    if (!eval_.empty()) result["eval_loss"] = nine_digits(eval_[0]);
    if (eval_.size() > 1) result["eval_accuracy"] = eval_[1];
    if (task_->limit)
      result[task_->limit->kind == workloads::Limit::Kind::loss ? "best_loss" : "best_accuracy"] =
          task_->limit->value;
    return result;
  }

  TrainCommand command_;
  workloads::Options& workload_ = command_.workload();
  PlanningOptions& planning_ = command_.planning;
  Rates rates_;
  // Of the process beside the plan; kept by evaluation alone; planned for steps and evaluation.
  Bytes fixed_, beside_, peak_;
  std::optional<Evaluation> evaluation_;
  MachineReport machine_;

  std::unique_ptr<workloads::Workload> task_;
  std::vector<double> losses_, eval_;
  double step_ms_ = 0.0, processor_ms_ = 0.0, loss_scale_ = 1.0;
  std::int64_t skipped_ = 0;
};

}  // namespace

std::unique_ptr<Verb> train_verb() { return std::make_unique<Train>(); }

}  // namespace ebb::cli
