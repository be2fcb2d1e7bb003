// `ebb profile`: one step in detail: memory over its instructions, planned and measured, and the
// time of every kernel.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/bound_step.h"
#include "cli/budget_errors.h"
#include "cli/level_rules.h"
#include "cli/measure.h"
#include "cli/memory_check.h"
#include "cli/multilevel_options.h"
#include "cli/multilevel_verbs.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/page_data.h"
#include "cli/planning.h"
#include "cli/process_memory.h"
#include "cli/recompute_rules.h"
#include "cli/run_facts.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/report/memory_profile.h"
#include "ebb/report/timeline.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Heap memory beside the arena: the step, and the report with the data of every instruction.
Bytes bytes_of_profile(std::size_t instructions) {
  constexpr Bytes page = 1_MiB, instruction = 4_KiB;
  return bytes_of_bound_step(instructions) + page +
         static_cast<std::int64_t>(instructions) * instruction;
}

constexpr int first_steps = 2;  // steps that touch memory for the first time or are recorded

class Profile : public Verb {
 public:
  Profile()
      : Verb("profile", "Run a step and show where its memory and time go, kernel by kernel",
             "ebb profile --workload lm --out profile") {}

 protected:
  void configure(CLI::App& app) override {
    config_.attach(app, [](const CLI::App&, const std::string& key) {
      return key == "steps";  // of training
    });
    add_workload_options(app, workload_, Levels::several);
    add_multilevel_options(app, multilevel_);
    add_planning_options(app, planning_);
    add_option(app, "--steps", steps_,
               "Timed steps, whose median is shown; two more steps warm up before")
        .between(1, 10000)
        .show_default();
    add_overcommit_option(app, overcommit_);
    add_option(app, "--out", out_, "Folder for report.html, profile.json and trace.json")
        .type_name("DIR")
        .show_default();
  }

  int run() override {
    if (!named_device(planning_.device))
      throw UsageError(
          "ebb profile runs the step, so --device must be cpu or cuda, not a file; ebb plan takes "
          "a file");
    const TriedFolder tried(out_);
    std::optional<PinnedThreads> pinned;
    if (planning_.machine.pin_threads) pinned.emplace();
    if (is_multilevel(workload_.name)) return run_levels();
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    const Rates rates = rates_for(planning_);
    std::optional<Waiting> waiting(std::in_place, "planning");
    Bytes resident;  // of the process, when its fixed cost was measured
    const auto fixed_cost = [&](workloads::Workload& task, std::size_t instructions) {
      const Bytes cost = measure_fixed_cost(
          planning_,
          loader_bytes(*task.train, workloads::training_loader(task.batch_size, workload_.seed,
                                                               device_of(planning_))) +
              bytes_of_profile(instructions));
      resident = process_resident();
      return cost;
    };
    if (planning_.whole_process) {
      const auto task = workloads::make_workload(placed(workload_, planning_));
      fixed_ = fixed_cost(*task, instructions_to_come(task->model().parameters().size()));
    }
    TrainOptions train = step_options(planning_);
    train.compile = compile_options(planning_, workload_.seed, rates, fixed_);
    train.accumulate = accumulation(workload_, planning_, train.compile);
    const TracedWorkload traced = trace_workload(workload_, planning_, train.accumulate);
    settle_budget(planning_, traced.graph, train.compile);
    // Both errors come before anything is allocated: a budget that cannot be kept, and a plan
    // larger than the machine.
    const auto make_plan = [&] {
      return plan_or_explain(workload_, planning_, traced.graph, train.compile,
                             {.evaluation = {}, .fixed = fixed_, .resident = resident});
    };
    Plan plan = make_plan();
    workloads::Workload& task = *traced.task;
    const data::LoaderOptions loading =
        workloads::training_loader(task.batch_size, workload_.seed, device_of(planning_));
    if (planning_.whole_process) {  // planning took memory itself
      fixed_ = fixed_cost(task, plan.instructions.size());
      train.compile = compile_options(planning_, workload_.seed, rates, fixed_);
      if (plan.peak > *train.compile.plan.budget) plan = make_plan();
    }
    require_recomputation(planning_, workload_.name, plan);
    require_memory(plan.peak, device_of(planning_), overcommit_);
    waiting.reset();
    budget_ = train.compile.plan.budget;
    data::Loader loader(task.train, loading);
    const std::vector<TensorType> types = loader.types().front();
    const MemoryMeter meter(device_of(planning_));
    task.load();
    train.weight = task.weight;
    std::optional<TrainStep> step(
        std::in_place, task.model(), optimizer_of(task, planning_),
        [&](const Batch& b) { return task.loss(b); }, train);
    time_steps(*step, loader);
    const Measured measured = meter.read(step->leaves(types), step->resident(types));
    plan = step->plan(types);
    MachineReport machine = step->arena()->report();
    if (pinned) machine.pinned_threads = pinned->grant();
    step.reset();  // the report takes memory too
    report(plan, measured, task, rates);
    const MachineOptions& asked = planning_.machine;
    if (!json() && (asked.huge_pages || asked.lock_memory || asked.pin_threads))
      fmt::print("{}", to_string(machine));
    return kept_budget(planning_, budget_, measured.total).report();
  }

 private:
  // Profiles the steps of all levels. Kernels are not timed one by one.
  int run_levels() {
    multilevel_.common = workload_;
    check_workload_options(multilevel_);
    const Rates rates = rates_for(planning_);
    const LevelsProfile levels =
        profile_levels(multilevel_, planning_, rates, first_steps, steps_, overcommit_);
    step_ms_ = levels.step_ms;
    const Plan& plan = levels.plan.together;
    PageData page("profile", run_facts(rates.name),
                  {{"workload", workload_.name},
                   {"parameters", levels.parameters},
                   {"batch", levels.batch},
                   {"steps", steps_}});
    nlohmann::ordered_json row = planned_fields(workload_.name, plan);
    row["measured_peak_bytes"] = levels.measured.count;
    row["measured_staying_by_category"] = by_category(levels.staying);
    row["measured_transient_bytes"] = levels.transient.count;
    row["step_ms"] = step_times();
    fixed_ = levels.fixed;
    add_budget(row, levels.budget);
    page.add_row(std::move(row), report::timeline_json(plan, levels.sources));
    write_files(page, report::chrome_trace(plan));
    if (json())
      std::cout << json_text(page.study()) << "\n";
    else
      fmt::print(
          "{}: {} parameters, batch {}, on {}\npeak {} as planned, {} measured; {:.2f} ms a step "
          "with the updates of all levels that follow from it, {:.2f} ms predicted\n\n{}\n{}; "
          "times of kernels are predictions there\n",
          workload_.name, levels.parameters, levels.batch, rates.name, to_string(levels.plan.peak),
          to_string(levels.measured), median(step_ms_), plan.predicted_ms,
          to_string(report::profile(plan)), (out_ / "report.html").string());
    return kept_budget(planning_, levels.budget, levels.measured).report();
  }

  // `steps` is the budget of the steps.
  void add_budget(nlohmann::ordered_json& row, std::optional<Bytes> steps) const {
    if (!steps) return;
    row["budget_bytes"] = (*steps + fixed_).count;
    if (planning_.whole_process) {
      row["fixed_bytes"] = fixed_.count;
      row["process_peak_bytes"] = process_peak().count;
    }
  }

  nlohmann::ordered_json step_times() const {
    return {{"median", median(step_ms_)},
            {"low", *std::min_element(step_ms_.begin(), step_ms_.end())},
            {"high", *std::max_element(step_ms_.begin(), step_ms_.end())},
            {"runs", step_ms_}};
  }

  void write_files(const PageData& page, const std::string& trace) const {
    make_folder(out_);
    write_file(out_ / "profile.json", json_text(page.study(), 1) + "\n");
    write_file(out_ / "trace.json", trace);
    write_file(out_ / "report.html", page.html(fmt::format("ebb: profile of {}", workload_.name)));
  }

  // Times whole steps, then as many steps with a clock around every kernel.
  void time_steps(TrainStep& step, data::Loader& loader) {
    std::vector<std::vector<double>> kernels;
    for (int i = 0; i < first_steps + steps_; ++i) {
      const Batch batch = loader.next();
      const Clock::time_point begin = Clock::now();
      step(batch);
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      if (i >= first_steps) step_ms_.push_back(ms);
    }
    for (int i = 0; i < steps_; ++i) kernels.push_back(step.timed(loader.next()));
    for (std::size_t k = 0; k < kernels.front().size(); ++k) {
      std::vector<double> times;
      for (const auto& run : kernels) times.push_back(run[k]);
      kernel_ms_.push_back(median(times));
    }
  }

  void report(const Plan& plan, const Measured& measured, workloads::Workload& task,
              const Rates& rates) const {
    PageData page("profile", run_facts(rates.name),
                  {{"workload", workload_.name},
                   {"parameters", task.model().parameter_count()},
                   {"batch", task.batch_size},
                   {"steps", steps_}});
    nlohmann::ordered_json row = planned_fields(workload_.name, plan);
    row["measured_peak_bytes"] = measured.total.count;
    row["measured_staying_by_category"] = by_category(measured.staying);
    row["measured_transient_bytes"] = measured.transient().count;
    row["step_ms"] = step_times();
    add_budget(row, budget_);
    page.add_row(std::move(row),
                 report::timeline_json(plan, report::SourceLines(task.model()), kernel_ms_));
    write_files(page, report::chrome_trace(plan, kernel_ms_));
    if (json()) {
      std::cout << json_text(page.study()) << "\n";
      return;
    }
    fmt::print(
        "{}: {} parameters, batch {}, on {}\npeak {} as planned, {} measured; {:.2f} ms a "
        "step, {:.2f} ms in kernels, {:.2f} ms predicted\n\n{}\n{}; trace.json there opens in "
        "chrome://tracing or Perfetto\n",
        workload_.name, task.model().parameter_count(), task.batch_size, rates.name,
        to_string(plan.peak), to_string(measured.total), median(step_ms_),
        std::accumulate(kernel_ms_.begin(), kernel_ms_.end(), 0.0), plan.predicted_ms,
        to_string(report::profile(plan)), (out_ / "report.html").string());
  }

  workloads::Options workload_;
  workloads::MultilevelOptions multilevel_;
  PlanningOptions planning_;
  std::optional<Bytes> budget_;  // of the step
  Bytes fixed_;                  // of the process, with --whole-process
  int steps_ = 5;
  bool overcommit_ = false;
  fs::path out_ = "profile";
  std::vector<double> step_ms_, kernel_ms_;
};

}  // namespace

std::unique_ptr<Verb> profile_verb() { return std::make_unique<Profile>(); }

}  // namespace ebb::cli
