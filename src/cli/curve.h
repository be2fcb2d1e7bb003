// The frontier of a step: what less memory costs in time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ebb/program.h"

namespace ebb::cli {

struct CurvePoint {
  Bytes budget, peak;
  double ms = 0.0, overhead = 1.0;  // predicted; overhead: ÷ keeping all
  int recomputed = 0;               // instructions that run again
};
// One automatic plan of the curve, with its point.
struct CurvePlan {
  CurvePoint point;
  Plan plan;
};

// Automatic plans at `points` budgets, evenly from the smallest that can be kept to the one that
// keeps all. What `compile` says of budget and recomputation does not count.
std::vector<CurvePoint> frontier_curve(const Graph& graph, CompileOptions compile, int points);
std::vector<CurvePlan> frontier_plans(const Graph& graph, CompileOptions compile, int points);

nlohmann::ordered_json to_json(const std::vector<CurvePoint>& curve);
std::string to_table(const std::vector<CurvePoint>& curve);
std::string to_svg(const std::vector<CurvePoint>& curve, const std::string& title);

}  // namespace ebb::cli
