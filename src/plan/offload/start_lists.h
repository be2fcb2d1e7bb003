// Recomputation for many placements of the same step: found once without copies, then carried over.
#pragma once

#include <memory>
#include <vector>

#include "plan/offload/placement.h"
#include "plan/planner.h"

namespace ebb::planning {

// Lists of runs of a step without copies, from keeping all to the smallest peak.
class StartLists {
 public:
  explicit StartLists(const Planner& resident);

  // A strategy for the same step with copies: starts from these lists, which makes it many times as
  // fast as a search of its own. `planner` has planned `made`.
  std::unique_ptr<const Strategy> strategy(const OrderedGraph& made, const Planner& planner) const;

 private:
  const Planner& resident_;
  std::vector<Runs> lists_;
};

}  // namespace ebb::planning
