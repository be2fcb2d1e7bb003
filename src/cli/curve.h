// The frontier of a step: how much time less memory costs.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ebb/program.h"

namespace ebb::cli {

struct CurvePoint {
  Bytes budget, peak;
  double ms = 0.0, overhead = 1.0;  // predicted; overhead is relative to keeping all activations
  int recomputed = 0;               // instructions that run again
  ByTier<Bytes> held = {};          // bytes planned in each tier
  ByTier<Plan::Moved> moved = {};   // in a step
};
// One automatic plan of the curve, with its point.
struct CurvePlan {
  CurvePoint point;
  Plan plan;
};

// How a plan of a curve recomputes: automatically within a budget, otherwise nothing.
Recompute budget_rule(const std::optional<Bytes>& budget);

// How to make the plans of a curve.
struct Plannable {
  std::function<Plan(std::optional<Bytes>)> plan;  // within a budget, or keeping all activations
  std::function<Bytes()> least;                    // the smallest budget that can be kept
};

// Called before each plan with the number of points made so far. If it returns false, the curve
// ends with these points.
using BeforePlan = std::function<bool(int)>;

// Automatic plans at no more than `points` budgets, from the smallest that can be kept to the one
// that keeps all activations. Intervals with the largest uncertainty are halved first, so budgets
// are closer together where time rises fast.
std::vector<CurvePlan> frontier_plans(const Plannable& plannable, int points,
                                      const BeforePlan& before = {});
std::vector<CurvePoint> frontier_curve(const Plannable& plannable, int points,
                                       const BeforePlan& before = {});
// The curve of a program. Budget and recomputation in `compile` are ignored.
std::vector<CurvePoint> frontier_curve(const Graph& graph, CompileOptions compile, int points,
                                       const BeforePlan& before = {});
std::vector<CurvePlan> frontier_plans(const Graph& graph, CompileOptions compile, int points,
                                      const BeforePlan& before = {});

nlohmann::ordered_json to_json(const std::vector<CurvePoint>& curve);
std::string to_table(const std::vector<CurvePoint>& curve);
std::string to_svg(const std::vector<CurvePoint>& curve, const std::string& title);

}  // namespace ebb::cli
