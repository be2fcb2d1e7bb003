// `ebb fit`: how large a step fits into a budget, and what less memory costs in time.
#include <fmt/format.h>

#include <iostream>

#include "cli/curve.h"
#include "cli/planning.h"
#include "cli/verb.h"
#include "cli/workload_options.h"
#include "core/json.h"

namespace ebb::cli {
namespace {

class Fit : public Verb {
 public:
  Fit()
      : Verb("fit", "Find the largest batch, sequence or depth that fits a budget",
             "ebb fit --workload lm --budget 100MiB") {}

 protected:
  void configure(CLI::App& app) override {
    add_workload_options(app, workload_);
    add_planning_options(app, planning_);
    app.get_option("--budget")->required();
    app.add_option("--vary", vary_, "What to make as large as possible")
        ->check(CLI::IsMember({"batch", "sequence", "layers"}))
        ->capture_default_str();
    app.add_option("--most", most_, "No larger than this")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--points", points_, "Budgets on the curve of peak against time")
        ->check(CLI::Range(2, 100))
        ->capture_default_str();
  }

  int run() override {
    planning_.only_plans = true;
    rates_ = rates_for(planning_);
    fixed_ = planning_.whole_process ? measure_fixed_cost() : Bytes{};
    compile_ = compile_options(planning_, workload_.seed, rates_, fixed_);
    const std::int64_t largest = find_largest();
    const std::vector<CurvePoint> curve = frontier_curve(graph_of(largest), compile_, points_);
    const Plan plan = plan_program(graph_of(largest), compile_);
    if (json())
      print_json(largest, plan, curve);
    else
      print(largest, plan, curve);
    return success;
  }

 private:
  workloads::Options sized(std::int64_t size) const {
    workloads::Options options = workload_;
    (vary_ == "batch"      ? options.batch
     : vary_ == "sequence" ? options.sequence
                           : options.layers) = size;
    return options;
  }

  Graph graph_of(std::int64_t size) const {
    const workloads::Options options = sized(size);
    return trace_workload(options, planning_, accumulation(options, planning_, compile_)).graph;
  }

  bool fits(std::int64_t size) const {
    try {
      plan_program(graph_of(size), compile_);
      return true;
    } catch (const BudgetError&) {
      return false;
    }
  }

  // Doubles until it no longer fits, then halves the interval.
  std::int64_t find_largest() const {
    if (!fits(1)) plan_or_explain(sized(1), planning_, graph_of(1), compile_);  // throws
    std::int64_t good = 1, bad = most_ + 1;
    while (good * 2 <= most_ && fits(good * 2)) good *= 2;
    bad = std::min(bad, good * 2);
    while (bad - good > 1) {
      const std::int64_t middle = good + (bad - good) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    return good;
  }

  void print_json(std::int64_t largest, const Plan& plan,
                  const std::vector<CurvePoint>& curve) const {
    nlohmann::ordered_json result{{"workload", workload_.name},
                                  {"device", rates_.name},
                                  {"budget_bytes", parse_bytes(*planning_.budget).count},
                                  {"vary", vary_},
                                  {"largest", largest}};
    result.update(plan_fields(plan));
    result["curve"] = to_json(curve);
    std::cout << json_text(result) << "\n";
  }

  void print(std::int64_t largest, const Plan& plan, const std::vector<CurvePoint>& curve) const {
    fmt::print("{}: the largest {} within {} is {}{}\n{}\n", workload_.name, vary_,
               to_string(parse_bytes(*planning_.budget)), largest,
               largest == most_ ? ", the most that was tried" : "", plan_summary(plan));
    fmt::print("at that size, less memory for more time\n{}", to_table(curve));
  }

  workloads::Options workload_;
  PlanningOptions planning_;
  std::string vary_ = "batch";
  std::int64_t most_ = 65536;
  int points_ = 8;
  Rates rates_;
  Bytes fixed_;
  CompileOptions compile_;
};

}  // namespace

std::unique_ptr<Verb> fit_verb() { return std::make_unique<Fit>(); }

}  // namespace ebb::cli
