#include "cli/curve.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/bytes_in_unit.h"

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

// The interval between neighbouring plans in which the curve is known least: between two plans the
// curve lies in a rectangle, and the areas of these are compared. A share of the width is added, so
// that flat parts are sampled too. The last plan if no interval can be halved.
std::size_t least_known(const std::vector<CurvePlan>& plans) {
  constexpr double flat = 0.05;
  constexpr std::int64_t narrowest = 2 * 4096;  // bytes; plans are in whole pages
  const CurvePoint &first = plans.front().point, &last = plans.back().point;
  const double rise = std::max(std::abs(first.ms - last.ms), 1e-12);
  std::size_t best = plans.size() - 1;
  double most = 0.0;
  for (std::size_t i = 0; i + 1 < plans.size(); ++i) {
    const CurvePoint &low = plans[i].point, &high = plans[i + 1].point;
    const std::int64_t width = high.budget.count - low.budget.count;
    if (width < narrowest) continue;
    const double area = static_cast<double>(width) * (std::abs(low.ms - high.ms) / rise + flat);
    if (area > most) most = area, best = i;
  }
  return best;
}

}  // namespace

Recompute budget_rule(const std::optional<Bytes>& budget) {
  return {budget ? Recompute::Mode::automatic : Recompute::Mode::none};
}

std::vector<CurvePlan> frontier_plans(const Plannable& plannable, int points,
                                      const BeforePlan& before) {
  std::vector<CurvePlan> plans;
  const auto goes_on = [&] { return !before || before(static_cast<int>(plans.size())); };
  if (!goes_on()) return plans;
  const std::int64_t most = plannable.plan({}).peak.count, least = plannable.least().count;
  const auto make = [&](std::int64_t bytes) -> CurvePlan {
    Plan plan = plannable.plan(Bytes{bytes});
    const CurvePoint point{
        Bytes{bytes}, plan.peak, plan.predicted_ms, plan.overhead(), plan.recomputed_nodes(),
        plan.held,    plan.moved};
    return {point, std::move(plan)};
  };
  for (const std::int64_t bytes : {least, most}) {
    if (!goes_on()) return plans;
    plans.push_back(make(bytes));
  }
  while (static_cast<int>(plans.size()) < points && goes_on()) {
    const std::size_t at = least_known(plans);
    if (at + 1 == plans.size()) break;
    const std::int64_t low = plans[at].point.budget.count, high = plans[at + 1].point.budget.count;
    plans.insert(plans.begin() + static_cast<std::ptrdiff_t>(at) + 1, make(low + (high - low) / 2));
  }
  return plans;
}

std::vector<CurvePoint> frontier_curve(const Plannable& plannable, int points,
                                       const BeforePlan& before) {
  std::vector<CurvePoint> curve;
  for (const CurvePlan& plan : frontier_plans(plannable, points, before))
    curve.push_back(plan.point);
  return curve;
}

std::vector<CurvePlan> frontier_plans(const Graph& graph, CompileOptions compile, int points,
                                      const BeforePlan& before) {
  return frontier_plans(plannable(graph, std::move(compile)), points, before);
}

std::vector<CurvePoint> frontier_curve(const Graph& graph, CompileOptions compile, int points,
                                       const BeforePlan& before) {
  return frontier_curve(plannable(graph, std::move(compile)), points, before);
}

namespace {

// The tiers outside the device that any plan of the curve uses.
std::vector<Tier> tiers_of(const std::vector<CurvePoint>& curve) {
  std::vector<Tier> tiers;
  for (const Tier tier : {Tier::host, Tier::disk})
    if (std::any_of(curve.begin(), curve.end(),
                    [&](const CurvePoint& p) { return p.held[tier] > 0_B; }))
      tiers.push_back(tier);
  return tiers;
}

}  // namespace

nlohmann::ordered_json to_json(const std::vector<CurvePoint>& curve) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const CurvePoint& p : curve) {
    points.push_back({{"budget_bytes", p.budget.count},
                      {"planned_peak_bytes", p.peak.count},
                      {"predicted_step_ms", p.ms},
                      {"overhead", p.overhead},
                      {"recomputed_nodes", p.recomputed}});
    for (const Tier tier : tiers_of(curve))
      points.back()["tiers"][std::string(name(tier))] = {
          {"planned_bytes", p.held[tier].count},
          {"fetched_bytes", p.moved[tier].fetched.count},
          {"stored_bytes", p.moved[tier].stored.count}};
  }
  return points;
}

std::string to_table(const std::vector<CurvePoint>& curve) {
  const std::vector<Tier> tiers = tiers_of(curve);
  std::string text = fmt::format("  {:>12}  {:>12}  {:>10}  {:>8}  {:>9}", "budget", "peak",
                                 "ms a step", "of least", "run again");
  for (const Tier tier : tiers)
    text += fmt::format("  {:>12}  {:>12}", fmt::format("on {}", name(tier)), "moved a step");
  text += '\n';
  // All bytes in one unit, so that budgets are easy to compare.
  Bytes most;
  for (const CurvePoint& p : curve) most = std::max({most, p.budget, p.peak});
  const auto shown = [&](Bytes bytes) { return in_unit_of(most, bytes); };
  for (const CurvePoint& p : curve) {
    text += fmt::format("  {:>12}  {:>12}  {:>10.2f}  {:>8.3f}  {:>9}", shown(p.budget),
                        shown(p.peak), p.ms, p.overhead, p.recomputed);
    for (const Tier tier : tiers)
      text += fmt::format("  {:>12}  {:>12}", to_string(p.held[tier]),
                          to_string(p.moved[tier].fetched + p.moved[tier].stored));
    text += '\n';
  }
  return text;
}

}  // namespace ebb::cli
