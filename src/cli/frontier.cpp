// `ebb frontier`: the curve of peak against time for one step, as a table, a picture and a page.
#include <fmt/core.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/curve.h"
#include "cli/evaluation.h"
#include "cli/options.h"
#include "cli/page_data.h"
#include "cli/planning.h"
#include "cli/run_facts.h"
#include "cli/verb.h"
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
    config_.attach(app);
    add_workload_options(app, workload_);
    add_planning_options(app, planning_);
    remove_running_options(app);
    // Budgets and recomputation are what the curve is made of.
    for (const char* name : {"--whole-process", "--budget", "--recompute"})
      remove_option(app, name);
    add_option(app, "--points", points_,
               "Budgets from the smallest that can be kept to keeping all")
        .between(2, 100)
        .show_default();
    add_option(app, "--out", out_, "Folder for frontier.svg, frontier.json and report.html")
        .type_name("DIR")
        .show_default();
  }

  int run() override {
    planning_.only_plans = planning_.tries_budgets = true;
    check_workload_options(workload_);
    const Rates rates = rates_for(planning_);
    const CompileOptions compile = compile_options(planning_, workload_.seed, rates, {});
    const std::int64_t parts = accumulation(workload_, planning_, compile);
    const TracedWorkload traced = trace_workload(workload_, planning_, parts);
    std::vector<CurvePlan> plans = frontier_plans(traced.graph, compile, points_);
    // Evaluation keeps its results beside the step, within the same budget.
    const Bytes beside = evaluation_keeps(workload_, planning_);
    for (CurvePlan& p : plans) p.point.budget += beside;
    std::vector<CurvePoint> curve;
    PageData page("frontier", run_facts(rates.name),
                  {{"workload", workload_.name},
                   {"parameters", traced.task->model().parameter_count()},
                   {"batch", traced.batch},
                   {"accumulate", parts}});
    for (const CurvePlan& p : plans) {
      curve.push_back(p.point);
      nlohmann::ordered_json row =
          planned_fields(fmt::format("budget {}", to_string(p.point.budget)), p.plan);
      row["budget_bytes"] = p.point.budget.count;
      page.add_row(std::move(row), report::timeline_json(p.plan));
    }
    page.add_curve("", to_json(curve));
    make_folder(out_);
    write_file(out_ / "frontier.json", json_text(page.study(), 1) + "\n");
    write_file(out_ / "frontier.svg",
               to_svg(curve, fmt::format("{}, batch {}: less memory for more time", workload_.name,
                                         traced.batch)));
    write_file(out_ / "report.html", page.html(fmt::format("ebb: frontier of {}", workload_.name)));
    if (json())
      std::cout << json_text(page.study()) << "\n";
    else
      fmt::print(
          "{}: {} parameters, batch {}, on {}\n{}\n{}; also frontier.svg and frontier.json there\n",
          workload_.name, traced.task->model().parameter_count(), traced.batch, rates.name,
          to_table(curve), (out_ / "report.html").string());
    return success;
  }

 private:
  workloads::Options workload_;
  PlanningOptions planning_;
  int points_ = 8;
  fs::path out_ = "frontier";
};

}  // namespace

std::unique_ptr<Verb> frontier_verb() { return std::make_unique<Frontier>(); }

}  // namespace ebb::cli
