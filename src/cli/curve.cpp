#include "cli/curve.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace ebb::cli {

namespace {

Plannable plannable(const Graph& graph, CompileOptions compile) {
  compile.plan.budget.reset();
  return {[&graph, compile](std::optional<Bytes> budget) mutable {
            compile.plan.budget = budget;
            compile.plan.recompute = budget_rule(budget);
            return plan_program(graph, compile);
          },
          [&graph, compile]() mutable {
            compile.plan.recompute = {Recompute::Mode::automatic};
            return least_budget(graph, compile);
          }};
}

}  // namespace

Recompute budget_rule(const std::optional<Bytes>& budget) {
  return {budget ? Recompute::Mode::automatic : Recompute::Mode::none};
}

std::vector<CurvePlan> frontier_plans(const Plannable& plannable, int points) {
  const std::int64_t most = plannable.plan({}).peak.count, least = plannable.least().count;
  std::vector<CurvePlan> plans;
  for (int i = 0; i < points; ++i) {
    const Bytes budget{least + (most - least) * i / (points - 1)};
    Plan plan = plannable.plan(budget);
    const CurvePoint point{budget, plan.peak, plan.predicted_ms, plan.overhead(),
                           plan.recomputed_nodes()};
    plans.push_back({point, std::move(plan)});
  }
  return plans;
}

std::vector<CurvePoint> frontier_curve(const Plannable& plannable, int points) {
  std::vector<CurvePoint> curve;
  for (const CurvePlan& plan : frontier_plans(plannable, points)) curve.push_back(plan.point);
  return curve;
}

std::vector<CurvePlan> frontier_plans(const Graph& graph, CompileOptions compile, int points) {
  return frontier_plans(plannable(graph, std::move(compile)), points);
}

std::vector<CurvePoint> frontier_curve(const Graph& graph, CompileOptions compile, int points) {
  return frontier_curve(plannable(graph, std::move(compile)), points);
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
