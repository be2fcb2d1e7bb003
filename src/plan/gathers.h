// Weights that ranks have ranges of, and gather before they read them. A gathered weight can be
// freed and gathered again like a value that is computed again: it depends on its variable alone.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "plan/recompute/strategy.h"
#include "plan/schedule.h"

namespace ebb::planning {

// The nodes that gather variables: each all_gather whose input is made of one variable by views and
// ops with one input (a cast), these, and views of the result.
using Gathers = std::unordered_set<const Node*>;
Gathers find_gathers(const Order& order);

// The order with each of these nodes moved to just before the first other node that needs it.
Order gather_late(const Order& order, const Gathers& gathers);

// The runs with each gathered weight freed where it is not read for longer than gathering it takes,
// and gathered again. Gives back `runs` if the step gathers nothing.
Runs gather_again(const Question& question, Runs runs);

}  // namespace ebb::planning
