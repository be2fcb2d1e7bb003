#include "cli/curve.h"

#include <fmt/format.h>

namespace ebb::cli {

std::vector<CurvePlan> frontier_plans(const Graph& graph, CompileOptions compile, int points) {
  compile.plan.budget.reset();
  compile.plan.recompute = {Recompute::Mode::none};
  const std::int64_t most = plan_program(graph, compile).peak.count;
  const std::int64_t least = least_budget(graph, compile).count;
  compile.plan.recompute = {Recompute::Mode::automatic};
  std::vector<CurvePlan> plans;
  for (int i = 0; i < points; ++i) {
    compile.plan.budget = {least + (most - least) * i / (points - 1)};
    Plan plan = plan_program(graph, compile);
    const CurvePoint point{*compile.plan.budget, plan.peak, plan.predicted_ms, plan.overhead(),
                           plan.recomputed_nodes()};
    plans.push_back({point, std::move(plan)});
  }
  return plans;
}

std::vector<CurvePoint> frontier_curve(const Graph& graph, CompileOptions compile, int points) {
  std::vector<CurvePoint> curve;
  for (const CurvePlan& plan : frontier_plans(graph, std::move(compile), points))
    curve.push_back(plan.point);
  return curve;
}

nlohmann::ordered_json to_json(const std::vector<CurvePoint>& curve) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const CurvePoint& p : curve)
    points.push_back({{"budget_bytes", p.budget.count},
                      {"planned_peak_bytes", p.peak.count},
                      {"predicted_step_ms", p.ms},
                      {"overhead", p.overhead},
                      {"recomputed_nodes", p.recomputed}});
  return points;
}

std::string to_table(const std::vector<CurvePoint>& curve) {
  std::string text = fmt::format("  {:>12}  {:>12}  {:>10}  {:>8}  {:>9}\n", "budget", "peak",
                                 "ms a step", "of least", "run again");
  for (const CurvePoint& p : curve)
    text += fmt::format("  {:>12}  {:>12}  {:>10.2f}  {:>8.3f}  {:>9}\n", to_string(p.budget),
                        to_string(p.peak), p.ms, p.overhead, p.recomputed);
  return text;
}

}  // namespace ebb::cli
