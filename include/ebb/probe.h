// What the planner has to know of a device of this machine, found by trying it: its rates, and the
// algorithms of its libraries.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ebb/graph.h"
#include "ebb/plan.h"
#include "ebb/rates.h"
#include "ebb/tuning.h"

namespace ebb {

// From which the planner predicts time. Takes about a second.
Rates measure_rates(Device device = device::cpu);

// What is known of the libraries of a device that is here: what the user's cache folder holds, and
// what `tune` has found since.
std::shared_ptr<const Tuning> known_tuning(Device device);

// Asks and times those libraries for the calls of `graph` that are not known yet, and keeps the
// answers in the cache folder. `tell` is called before, if there are any. The graph has gone
// through its passes.
std::shared_ptr<const Tuning> tune(const Graph& graph, const PlanOptions& options,
                                   const std::function<void(const std::string&)>& tell = {});

}  // namespace ebb
