// What the planner needs to know of a device of this machine, found by measuring: its rates, and
// the algorithms of its libraries.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ebb/graph.h"
#include "ebb/plan.h"
#include "ebb/rates.h"
#include "ebb/tuning.h"

namespace ebb {

// The rates from which the planner predicts time. Takes about a second.
Rates measure_rates(Device device = device::cpu);

// The tuning known so far for a device of this machine: the contents of the user's cache folder and
// the results of `tune` since.
std::shared_ptr<const Tuning> known_tuning(Device device);

// Queries and times the device's libraries for the calls of `graph` that are not known yet, and
// stores the answers in the cache folder. `tell` is called first if there are any such calls. The
// graph must have gone through its passes.
std::shared_ptr<const Tuning> tune(const Graph& graph, const PlanOptions& options,
                                   const std::function<void(const std::string&)>& tell = {});

}  // namespace ebb
