// The tables of a plan as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "ebb/plan.h"

namespace ebb::io {

// Leaves are written by their number in `order`, the nodes of the plan's graph.
nlohmann::ordered_json plan_json(const Plan& plan, const std::vector<std::shared_ptr<Node>>& order);

// Throws ValueError, which names the row and the field. All numbers of rows lie in their tables;
// nothing else is checked, and totals are not set.
Plan plan_from_json(const nlohmann::json& object, const std::vector<std::shared_ptr<Node>>& order);

}  // namespace ebb::io
