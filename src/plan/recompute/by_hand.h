// Strategies that follow a fixed rule chosen by the user and ignore the budget.
#pragma once

#include "plan/recompute/strategy.h"

namespace ebb::planning {

std::unique_ptr<const Strategy> keep_all_strategy();
std::unique_ptr<const Strategy> marked_strategy();
std::unique_ptr<const Strategy> blocks_strategy();
std::unique_ptr<const Strategy> sqrt_strategy();
std::unique_ptr<const Strategy> segment_strategy(std::int64_t segment);
std::unique_ptr<const Strategy> selective_strategy();

}  // namespace ebb::planning
