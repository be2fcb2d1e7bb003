// `ebb frontier`: the curve of peak against time for one step, as a table, a picture and a page;
// and with --prune the curve of loss against bytes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/curve.h"
#include "cli/evaluation.h"
#include "cli/level_rules.h"
#include "cli/memory_check.h"
#include "cli/multilevel_options.h"
#include "cli/multilevel_verbs.h"
#include "cli/numbers.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/page_data.h"
#include "cli/planning.h"
#include "cli/prune_curve.h"
#include "cli/run_facts.h"
#include "cli/verb.h"
#include "cli/waiting.h"
#include "cli/workload_options.h"
#include "core/json.h"
#include "ebb/report/timeline.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

class Frontier : public Verb {
 public:
  Frontier()
      : Verb("frontier", "Show what less memory costs in time, for one step",
             "ebb frontier --workload gpt2 --layers 4 --points 12") {}

 protected:
  void configure(CLI::App& app) override {
    // In a file, these keys say how `ebb train` prunes, evaluates and starts.
    config_.attach(app, [](const CLI::App&, const std::string& name) {
      return name == "prune" || name == "eval-batches" || name == "overcommit";
    });
    add_workload_options(app, workload_, Levels::several);
    add_multilevel_options(app, multilevel_);
    add_planning_options(app, planning_);
    remove_running_options(app);
    // Budgets and recomputation are what the curve varies.
    for (const char* name : {"--whole-process", "--budget", "--recompute"})
      remove_option(app, name);
    add_option(app, "--points", points_,
               "Budgets from the smallest that can be kept to keeping all")
        .between(2, 100)
        .show_default();
    app.add_option(
           "--prune", prune_.shares,
           "Instead: measure test loss and bytes of the model with these shares of its heads, "
           "neurons or channels removed, such as 0.1,0.3,0.5; runs the model and writes prune.json")
        ->delimiter(',')
        ->check(FiniteNumber::between(0.0, 1.0))
        ->type_name("SHARES");
    add_option(app, "--recover", prune_.recover,
               "With --prune: training steps after parts are removed")
        .positive()
        .needs("--prune");
    add_option(app, "--eval-batches", prune_.eval_batches,
               "With --prune: number of test batches for the loss")
        .positive()
        .needs("--prune")
        .show_default();
    add_overcommit_option(app, prune_.overcommit);
    option(app, "--overcommit").needs("--prune");
    add_option(app, "--out", out_, "Folder for frontier.svg, frontier.json and report.html")
        .type_name("DIR")
        .show_default();
  }

  int run() override {
    const TriedFolder tried(out_);
    if (!prune_.shares.empty()) return run_prune();
    planning_.only_plans = planning_.tries_budgets = true;
    const Rates rates = rates_for(planning_);
    std::vector<CurvePlan> plans;
    {
      Waiting waiting("planning");
      const BeforePlan before = [&](int made) { return waiting.say_points(made, points_), true; };
      plans = is_multilevel(workload_.name) ? plans_of_levels(rates, before)
                                            : plans_of_step(rates, before);
    }
    std::vector<CurvePoint> curve;
    PageData page("frontier", run_facts(rates.name),
                  {{"workload", workload_.name},
                   {"parameters", parameters_},
                   {"batch", batch_},
                   {"accumulate", parts_}});
    for (const CurvePlan& p : plans) {
      curve.push_back(p.point);
      nlohmann::ordered_json row =
          planned_fields(fmt::format("budget {}", to_string(p.point.budget)), p.plan);
      row["budget_bytes"] = p.point.budget.count;
      page.add_row(std::move(row), report::timeline_json(p.plan, sources_));
    }
    page.add_curve("", to_json(curve));
    make_folder(out_);
    write_file(out_ / "frontier.json", json_text(page.study(), 1) + "\n");
    write_file(out_ / "frontier.svg",
               to_svg(curve, fmt::format("{}, batch {}: memory and time", workload_.name, batch_)));
    write_file(out_ / "report.html", page.html(fmt::format("ebb: frontier of {}", workload_.name)));
    if (json())
      std::cout << json_text(page.study()) << "\n";
    else
      fmt::print(
          "{}: {} parameters, batch {}, on {}\n{}\n{}; also frontier.svg and frontier.json there\n",
          workload_.name, parameters_, batch_, rates.name, to_table(curve),
          (out_ / "report.html").string());
    return success;
  }

 private:
  int run_prune() {
    if (is_multilevel(workload_.name))
      throw UsageError(
          fmt::format("--prune is for workloads of one level, but {} has several", workload_.name));
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    if (app().get_option("--points")->count() > 0)
      throw UsageError("--points is for budgets: with --prune, each share is a point");
    if (!workload_.model && prune_.recover == 0)
      throw UsageError(
          "--prune measures a loss: give a trained model with --model DIR, or train a new one with "
          "--recover N steps");
    if (device_of(planning_).kind != Device::Kind::cpu)
      throw UsageError("--prune runs models on the CPU only");
    for (const char* name : {"--disk-budget", "--host-budget", "--offload", "--offload-folder"})
      if (app().get_option(name)->count() > 0)
        throw UsageError(
            fmt::format("{} is for budgets, which --prune does not use: leave it out", name));
    const std::vector<PrunePoint> points =
        prune_curve(workload_, planning_, rates_for(planning_), prune_);
    nlohmann::ordered_json study = run_facts("cpu");
    study["workload"] = workload_.name;
    study["recover"] = prune_.recover;
    study["points"] = to_json(points);
    make_folder(out_);
    write_file(out_ / "prune.json", json_text(study, 1) + "\n");
    if (json())
      std::cout << json_text(study) << "\n";
    else
      fmt::print("{}{}\n", to_table(points), (out_ / "prune.json").string());
    return success;
  }

  std::vector<CurvePlan> plans_of_step(const Rates& rates, const BeforePlan& before) {
    refuse_multilevel_options(app(), workload_.name);
    check_workload_options(workload_);
    const CompileOptions compile = compile_options(planning_, workload_.seed, rates, {});
    parts_ = accumulation(workload_, planning_, compile);
    const TracedWorkload traced = trace_workload(workload_, planning_, parts_);
    sources_.add(traced.task->model());
    parameters_ = traced.task->model().parameter_count(), batch_ = traced.batch;
    std::vector<CurvePlan> plans = frontier_plans(traced.graph, compile, points_, before);
    // Evaluation keeps its results beside the step, within the same budget.
    const Bytes beside = evaluation_keeps(workload_, planning_);
    for (CurvePlan& p : plans) p.point.budget += beside;
    return plans;
  }

  std::vector<CurvePlan> plans_of_levels(const Rates& rates, const BeforePlan& before) {
    multilevel_.common = workload_;
    check_workload_options(multilevel_);
    const auto task = workloads::make_multilevel(resolved(multilevel_, planning_, {}));
    sources_ = sources_of(*task);
    parameters_ = parameters_of(*task), batch_ = task->batch_size;
    std::vector<CurvePlan> plans =
        frontier_plans(plannable_levels(multilevel_, planning_, rates), points_, before);
    const Bytes beside = kept_by_evaluation(multilevel_, planning_);
    for (CurvePlan& p : plans) p.point.budget += beside;
    return plans;
  }

  workloads::Options workload_;
  workloads::MultilevelOptions multilevel_;
  std::int64_t parameters_ = 0, batch_ = 0, parts_ = 1;
  PlanningOptions planning_;
  report::SourceLines sources_;
  int points_ = 8;
  PruneCurveOptions prune_;
  fs::path out_ = "frontier";
};

}  // namespace

std::unique_ptr<Verb> frontier_verb() { return std::make_unique<Frontier>(); }

}  // namespace ebb::cli
