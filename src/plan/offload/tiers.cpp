#include "plan/offload/tiers.h"

#include <algorithm>
#include <optional>

#include "plan/offload/candidates.h"

namespace ebb {
namespace {

constexpr int shares = 16;  // parts of the candidates that may leave the device

using Kind = Candidate::Kind;

class TierSearch {
 public:
  explicit TierSearch(Planner& resident) : resident_(resident), candidates_(candidates(resident)) {
    for (const Candidate& candidate : candidates_) total_ += candidate.bytes;
  }

  PlanResult run() {
    const std::optional<Bytes>& budget = resident_.options().budget;
    if (!budget) return with(place({}, {}, resident_)).run();
    for (const auto& order : {std::vector{Kind::state, Kind::activation, Kind::weights},
                              std::vector{Kind::activation, Kind::state, Kind::weights}})
      try_order(in_order(order));
    if (!good_enough()) offer(place({}, {}, resident_));
    if (!best_) {
      Plan least = least_plan();
      if (least.peak > *budget) return {{}, Planner::kept(least)};
      return {std::move(least), {}};
    }
    if (resident_.options().effort == Effort::thorough && best_->recomputed_nodes() > 0)
      offer(Placement(best_placement_), Effort::thorough);
    return {std::move(best_), {}};
  }

  // The plan with the smallest peak: with everything outside the device that may be, or nothing.
  Plan least_plan() {
    const Effort effort = resident_.options().effort;
    Plan least = with(place({}, {}, resident_), effort).least();
    Plan other =
        with(place(in_order({Kind::state, Kind::weights, Kind::activation}), total_, resident_),
             effort)
            .least();
    return other.peak < least.peak ? other : least;
  }

 private:
  // Copies cost nothing that could be saved.
  bool good_enough() const {
    return best_ && best_->predicted_ms <= 1.01 * best_->predicted_keep_all_ms;
  }

  // Finds by bisection the smallest part of the candidates that must leave if nothing is
  // recomputed, and plans with it; and, as long as copies take time, with less of them and some
  // recomputation.
  void try_order(const std::vector<Candidate>& ordered) {
    const Bytes budget = *resident_.options().budget;
    const auto part = [&](int share) {
      return place(ordered, total_ - (shares - share) * (total_ / shares), resident_);
    };
    int low = 0, high = shares + 1;  // too little leaves; enough does
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (with(part(middle)).keep_all_peak() <= budget ? high : low) = middle;
    }
    for (int share = high; share <= std::min(high + 2, shares); ++share)
      if (offer(part(share))) break;
    const int most = std::min(high, shares);
    for (const int share : {most, 3 * most / 4, most / 2}) {
      if (good_enough()) return;
      if (share > 0 && !(share == most && high <= shares)) offer(part(share));
    }
  }

  std::vector<Candidate> in_order(const std::vector<Kind>& kinds) const {
    std::vector<Candidate> result;
    for (const Kind kind : kinds)
      std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(result),
                   [&](const Candidate& candidate) { return candidate.kind == kind; });
    return result;
  }

  Planner with(const Placement& placement, Effort effort = Effort::quick) const {
    PlanOptions options = resident_.options();
    options.effort = effort;
    if (placement.empty()) return Planner(resident_.graph(), resident_.order(), options);
    const OrderedGraph made = with_transfers(resident_.graph(), resident_.order(), placement);
    return Planner(made.graph, made.order, options);
  }

  // Plans with this placement, and keeps the result if it is the fastest so far. Whether there is
  // a plan.
  bool offer(const Placement& placement, Effort effort = Effort::quick) {
    const Planner planner = with(placement, effort);
    const Bytes budget = *planner.options().budget;
    if (planner.persistent() >= budget) return false;
    std::optional<Plan> plan = planner.keep(budget);
    if (!plan) return false;
    if (best_ && best_->predicted_ms <= plan->predicted_ms) return true;
    best_ = std::move(plan);
    best_placement_ = placement;
    return true;
  }

  Planner& resident_;
  std::vector<Candidate> candidates_;
  Bytes total_;
  std::optional<Plan> best_;
  Placement best_placement_;
};

}  // namespace

bool uses_tiers(const Planner& resident) {
  return resident.options().offload.any() || !place({}, {}, resident).variables.empty();
}

PlanResult plan_in_tiers(Planner& resident) {
  return uses_tiers(resident) ? TierSearch(resident).run() : resident.run();
}

KeptBudget least_in_tiers(Planner& resident) {
  return Planner::kept(TierSearch(resident).least_plan());
}

}  // namespace ebb
