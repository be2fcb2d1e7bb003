// Weights of which every rank has a range, and which are gathered before they are read. A gathered
// weight can be freed and gathered again like a recomputed value: it depends on its variable alone.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "plan/recompute/strategy.h"
#include "plan/schedule.h"

namespace ebb::planning {

// The nodes that gather variables: each all_gather whose input is made from one variable by views
// and ops with one input (a cast), the nodes that make this input, and views of the result.
using Gathers = std::unordered_set<const Node*>;
Gathers find_gathers(const Order& order);

// The order with each of these nodes moved to just before the first other node that needs it.
Order gather_late(const Order& order, const Gathers& gathers);

// `runs` with gathered weights freed and gathered again where they are not read for longer than
// gathering takes. Returns `runs` unchanged if the step gathers nothing.
Runs gather_again(const Question& question, Runs runs);

}  // namespace ebb::planning
