// `ebb train`: trains a workload and tells what it took.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "cli/evaluation.h"
#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/multilevel.h"
#include "cli/numbers.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/verb.h"
#include "cli/workload_options.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/ebb.h"
#include "ebb/io/checkpoint.h"
#include "ebb/report/progress.h"
#include "ebb/report/run_log.h"
#include "ebb/train/train_step.h"

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
    add_workload_options(app, workload_, Levels::several);
    add_multilevel_options(app, multilevel_);
    add_planning_options(app, planning_);
    app.add_option("--steps", steps_, "Steps in all")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--lr", rate_, "Learning rate; default: the workload's own")
        ->check(FiniteNumber::not_negative());
    app.add_option("--warmup", warmup_, "Steps over which the rate rises from 0")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--schedule", schedule_, "How the rate goes on")
        ->check(CLI::IsMember({"constant", "cosine", "linear"}))
        ->capture_default_str();
    app.add_option("--eval-batches", eval_batches_, "Test batches to judge the result by; 0: none")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_flag("--overcommit", overcommit_,
                 "Start even if the plan is larger than the memory that is available");
    app.add_option("--checkpoint", checkpoint_,
                   "Folder to keep a checkpoint in, written at the end")
        ->type_name("DIR");
    app.add_option("--checkpoint-every", checkpoint_every_, "Also every so many steps")
        ->check(CLI::PositiveNumber)
        ->needs("--checkpoint");
    app.add_option("--resume", resume_,
                   "Go on from the checkpoint in this folder, and keep it there")
        ->check(CLI::ExistingDirectory)
        ->type_name("DIR");
    app.add_option("--save", save_, "Write the model as a Hugging Face folder (gpt2, bert, llama)")
        ->type_name("DIR");
    app.add_option("--log", log_, "Folder for JSON lines and TensorBoard logs")->type_name("DIR");
  }

  int run() override {
    if (resume_ && checkpoint_ && *resume_ != *checkpoint_)
      throw UsageError(
          fmt::format("--resume {} keeps its checkpoint there; --checkpoint {} says otherwise",
                      resume_->string(), checkpoint_->string()));
    if (resume_) checkpoint_ = resume_;
    if (is_multilevel(workload_.name)) return run_multilevel();
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    workload_ = placed(workload_, planning_);
    if (planning_.needs_rates()) rates_ = rates_for(planning_);
    std::optional<PinnedThreads> pinned;
    if (planning_.machine.pin_threads) pinned.emplace();
    const MemoryMeter meter(workload_.device);
    task_ = workloads::make_workload(workload_);
    if (planning_.accumulate != "auto")
      check_accumulation(std::stoll(planning_.accumulate), task_->batch_size);
    const data::LoaderOptions loading =
        workloads::training_loader(task_->batch_size, workload_.seed, workload_.device);
    data::Loader loader(task_->train, loading);
    const Bytes batches = loader_bytes(*task_->train, loading);
    if (planning_.whole_process) fixed_ = measure_fixed_cost(planning_, batches);
    if (eval_batches_ > 0)
      beside_ = evaluation_keeps(task_->model(), metrics_of(*task_), *task_->test);
    TrainStep step(
        task_->model(), optimizer_of(*task_, planning_, rate_),
        [&](const Batch& b) { return task_->loss(b); }, train_options());
    if (resume_) restore(loader, step);

    const std::vector<TensorType> types = loader.types().front();
    const Plan& plan = step.plan(types);
    plan_evaluation(step, plan);
    peak_ = evaluation_ ? std::max(plan.peak, evaluation_->peak()) : plan.peak;
    require_memory(peak_, workload_.device, overcommit_);

    train(loader, step, plan);
    if (checkpoint_) keep(loader, step);
    if (evaluation_) eval_ = evaluation_->run();
    const Measured taken = meter.read(plan, step.resident(types));
    // On a GPU the driver's figure has what evaluation keeps in it.
    const bool on_cuda = workload_.device.kind == Device::Kind::cuda;
    const Bytes measured = on_cuda ? taken.total : taken.total + beside_,
                fixed = meter.beside(taken);
    machine_ = step.arena()->report();
    if (pinned) machine_.pinned_threads = pinned->grant();
    if (save_ && !task_->save(*save_))
      throw UsageError(fmt::format("the workload {} has no Hugging Face form", workload_.name));
    const Kept kept = kept_budget(planning_, whole_budget(step.options().compile), measured);
    report(plan, measured, fixed, kept);
    return kept.report();
  }

 private:
  int run_multilevel() {
    for (const auto& [given, option] : {std::pair{rate_.has_value(), "--lr"},
                                        {planning_.clip.has_value(), "--clip"},
                                        {warmup_ > 0, "--warmup"},
                                        {schedule_ != "constant", "--schedule"},
                                        {save_.has_value(), "--save"}})
      if (given)
        throw UsageError(fmt::format("{} has several levels, which {} does not tell apart",
                                     workload_.name, option));
    multilevel_.common = workload_;
    check_workload_options(multilevel_);
    return train_multilevel(multilevel_, planning_,
                            {.steps = steps_,
                             .eval_batches = eval_batches_,
                             .checkpoint_every = checkpoint_every_,
                             .checkpoint = checkpoint_,
                             .log = log_,
                             .overcommit = overcommit_,
                             .resume = resume_.has_value()},
                            json() ? Output::json : Output::text);
  }

  TrainOptions train_options() {
    TrainOptions options = step_options(planning_);
    const std::int64_t rest = std::max<std::int64_t>(1, steps_ - warmup_);
    optim::SchedulePtr schedule = schedule_ == "cosine"   ? optim::cosine(rest, 0.1)
                                  : schedule_ == "linear" ? optim::linear_decay(rest)
                                                          : optim::constant();
    options.schedule = warmup_ > 0 ? optim::linear_warmup(warmup_, schedule) : schedule;
    options.compile = compile_options(planning_, workload_.seed, rates_, fixed_, beside_);
    options.accumulate = accumulation(*task_, planning_, options.compile);
    if (!planning_.budget) return options;
    const Graph graph = trace_step(*task_, planning_, options.accumulate);
    settle_budget(planning_, graph, options.compile);
    plan_or_explain(workload_, planning_, graph,
                    options.compile);  // an error tells what would help
    if (planning_.whole_process) {     // planning took memory too, which the process keeps
      fixed_ = measure_fixed_cost(
          planning_,
          loader_bytes(*task_->train, workloads::training_loader(task_->batch_size, workload_.seed,
                                                                 workload_.device)));
      options.compile = compile_options(planning_, workload_.seed, rates_, fixed_, beside_);
      plan_or_explain(workload_, planning_, graph, options.compile);
    }
    return options;
  }

  fs::path checkpoint_file() const { return *checkpoint_ / "checkpoint.safetensors"; }

  void keep(const data::Loader& loader, TrainStep& step) const {
    std::error_code error;
    fs::create_directories(*checkpoint_, error);
    if (error)
      throw FileError(
          fmt::format("{}: cannot make the folder: {}", checkpoint_->string(), error.message()));
    const data::Loader::State at = loader.save();
    io::save_checkpoint(checkpoint_file(), task_->model(), step,
                        {{"workload", workload_.name},
                         {"data", fmt::format("{} {} {} {} {}", at.seed, at.epoch, at.position,
                                              at.items, at.batch)}});
  }

  void restore(data::Loader& loader, TrainStep& step) const {
    const io::Notes notes = io::load_checkpoint(checkpoint_file(), task_->model(), step);
    const auto fail = [&](const std::string& what) {
      throw FileError(fmt::format("{}: {}", checkpoint_file().string(), what));
    };
    const auto workload = notes.find("workload"), data = notes.find("data");
    if (workload == notes.end() || workload->second != workload_.name)
      fail(fmt::format("it is not of the workload {}", workload_.name));
    data::Loader::State at;
    if (data == notes.end() || std::sscanf(data->second.c_str(), "%lu %ld %ld %ld %ld", &at.seed,
                                           &at.epoch, &at.position, &at.items, &at.batch) != 5)
      fail("the data's position is missing");
    loader.restore(at);
    if (step.step() >= steps_)
      throw UsageError(fmt::format("the checkpoint is at step {}; --steps {} leaves nothing to do",
                                   step.step(), steps_));
  }

  std::unique_ptr<report::RunLog> make_log() const {
    if (!log_) return report::none();
    std::vector<std::unique_ptr<report::RunLog>> logs;
    logs.push_back(report::json_lines(*log_ / "log.jsonl"));
    logs.push_back(report::tensorboard(*log_));
    return report::all_of(std::move(logs));
  }

  bool saves_after(std::int64_t step) const {
    return checkpoint_every_ && step % *checkpoint_every_ == 0;
  }

  void train(data::Loader& loader, TrainStep& step, const Plan& plan) {
    const auto log = make_log();
    report::Progress progress(steps_, {.label = workload_.name});
    std::vector<double> times, processor_times;
    std::optional<Batch> next;
    while (step.step() < steps_) {
      const Batch batch = next ? std::move(*next) : loader.next();
      next.reset();
      // A batch that was asked for too early would be missing after a checkpoint.
      const bool ahead = plan.device.kind == Device::Kind::cuda && step.step() + 1 < steps_ &&
                         !saves_after(step.step() + 1);
      const Clock::time_point begin = Clock::now();
      const std::clock_t processor_begin = std::clock();
      const StepResult result = step(batch, [&] {
        if (ahead) step.expect(next.emplace(loader.next()));
      });
      processor_times.push_back(1e3 * static_cast<double>(std::clock() - processor_begin) /
                                CLOCKS_PER_SEC);
      times.push_back(milliseconds_since(begin));
      losses_.push_back(result.loss);
      log->scalar("loss", step.step(), result.loss);
      log->scalar("rate", step.step(), result.rate);
      if (planning_.clip) log->scalar("gradient_norm", step.step(), result.gradient_norm);
      if (result.skipped) ++skipped_;
      loss_scale_ = result.loss_scale;
      if (planning_.precision == "fp16") log->scalar("loss_scale", step.step(), loss_scale_);
      progress.update(step.step(), result.loss, plan.peak);
      if (saves_after(step.step()) && step.step() < steps_) keep(loader, step);
    }
    progress.finish();
    log->close();
    // The first steps touch memory for the first time.
    const std::size_t warm = std::min<std::size_t>(times.size() - 1, 3);
    const auto usual = [&](const std::vector<double>& all) {
      return median({all.begin() + static_cast<std::ptrdiff_t>(warm), all.end()});
    };
    step_ms_ = usual(times), processor_ms_ = usual(processor_times);
  }

  void plan_evaluation(const TrainStep& step, const Plan& plan) {
    if (eval_batches_ == 0) return;
    CompileOptions compile = step.options().compile;
    compile.arena = step.arena();
    evaluation_.emplace(task_->model(), metrics_of(*task_), task_->test, task_->batch_size,
                        eval_batches_, compile,
                        TrainingMemory{plan.arena, plan.persistent, plan, whole_budget(compile)});
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
      std::cout << result.dump() << "\n";
      return;
    }
    fmt::print("{}: {} parameters, batch {}, {} steps of {:.1f} ms\n", workload_.name,
               task_->model().parameter_count(), task_->batch_size, losses_.size(), step_ms_);
    fmt::print("trained on {}\ntested on {}\n", to_string(task_->train_part),
               to_string(task_->test_part));
    fmt::print("loss {:.6g} at first, {:.6g} at last\n", losses_.front(), losses_.back());
    if (planning_.precision == "fp16")
      fmt::print("{} of the steps skipped, loss scale {} at last\n", skipped_, loss_scale_);
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
                {"steps", steps_},
                {"losses", losses},
                {"step_ms", step_ms_},
                {"step_processor_ms", processor_ms_},
                {"measured_peak_bytes", measured.count},
                {"fixed_bytes", fixed.count},
                {"process_peak_bytes", process_peak().count}};
    result.update(plan_fields(plan));
    result["planned_peak_bytes"] = peak_.count;  // of steps and evaluation
    if (evaluation_)
      result["eval_items"] = evaluation_->items(), result["eval_batch"] = evaluation_->part();
    if (planning_.precision == "fp16")
      result["skipped_steps"] = skipped_, result["loss_scale"] = loss_scale_;
    if (!eval_.empty()) result["eval_loss"] = nine_digits(eval_[0]);
    if (eval_.size() > 1) result["eval_accuracy"] = eval_[1];
    if (task_->limit)
      result[task_->limit->kind == workloads::Limit::Kind::loss ? "best_loss" : "best_accuracy"] =
          task_->limit->value;
    return result;
  }

  workloads::Options workload_;
  workloads::MultilevelOptions multilevel_;
  PlanningOptions planning_;
  Rates rates_;
  // Of the process beside the plan; kept by evaluation alone; planned for steps and evaluation.
  Bytes fixed_, beside_, peak_;
  bool overcommit_ = false;
  std::optional<Evaluation> evaluation_;
  MachineReport machine_;
  std::int64_t steps_ = 100, warmup_ = 0, eval_batches_ = 8;
  std::string schedule_ = "constant";
  std::optional<double> rate_;
  std::optional<std::int64_t> checkpoint_every_;
  std::optional<fs::path> checkpoint_, resume_, save_, log_;

  std::unique_ptr<workloads::Workload> task_;
  std::vector<double> losses_, eval_;
  double step_ms_ = 0.0, processor_ms_ = 0.0, loss_scale_ = 1.0;
  std::int64_t skipped_ = 0;
};

}  // namespace

std::unique_ptr<Verb> train_verb() { return std::make_unique<Train>(); }

}  // namespace ebb::cli
