#include "plan/offload/tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "core/backend.h"
#include "ebb/error.h"
#include "plan/offload/candidates.h"

namespace ebb::planning {
namespace {

constexpr int most_made = 3;  // plans that are made of the best offers
constexpr int shares = 16;    // parts of the candidates that may leave the device

using Kind = Candidate::Kind;

class TierSearch {
 public:
  explicit TierSearch(Planner& resident) : resident_(resident) {
    const Backend& backend = backend_of(resident.base().plan.device);
    for (const Tier tier : {Tier::host, Tier::disk})
      if (resident.options().offload.budgets[tier] > Bytes{} && tier != backend.second_tier())
        throw ValueError(fmt::format("[plan] tensors of {} can be moved to the tier {}, not to {}",
                                     to_string(resident.base().plan.device),
                                     name(backend.second_tier()), name(tier)));
    candidates_ = candidates(resident);
    for (const Candidate& candidate : candidates_) total_ += candidate.bytes;
  }

  PlanResult run() {
    const std::optional<Bytes>& budget = resident_.options().budget;
    if (!budget) return with(place({}, {}, resident_)).run();
    for (const auto& order : {std::vector{Kind::state, Kind::activation, Kind::weights},
                              std::vector{Kind::activation, Kind::state, Kind::weights}})
      try_order(in_order(order));
    if (!good_enough()) offer(place({}, {}, resident_));
    std::stable_sort(offers_.begin(), offers_.end(),
                     [](const Offer& a, const Offer& b) { return a.ms < b.ms; });
    std::optional<Plan> best;
    for (const Offer& each : offers_) {
      if (best && each.ms >= best->predicted_ms) break;
      std::optional<Plan> plan =
          each.placement.empty() ? resident_.keep(*budget) : with(each.placement).keep(*budget);
      if (plan && (!best || plan->predicted_ms < best->predicted_ms)) best = std::move(plan);
      if (best && ++made_ == most_made) break;
    }
    if (best && best->predicted_ms > resident_.keep_all_ms()) compare_with_resident(best);
    if (best) return {std::move(best), {}};
    Plan least = least_plan();
    if (least.peak > *budget) return {{}, Planner::kept(least)};
    return {std::move(least), {}};
  }

  // The plan with the smallest peak: with everything outside the device that may be, or nothing.
  Plan least_plan() {
    Plan least = with(place({}, {}, resident_)).least();
    Plan other =
        with(place(in_order({Kind::state, Kind::weights, Kind::activation}), total_, resident_))
            .least();
    return other.peak < least.peak ? other : least;
  }

 private:
  // Copies of the best offer cost nothing that could be saved.
  bool good_enough() const {
    return std::any_of(offers_.begin(), offers_.end(), [&](const Offer& offer) {
      return offer.ms <= 1.01 * resident_.keep_all_ms();
    });
  }

  // Offers are sorted by estimates, which are rough. Recomputation alone is never faster than the
  // plan that is chosen, whatever was estimated.
  void compare_with_resident(std::optional<Plan>& best) {
    const Placement nothing = place({}, {}, resident_);
    const Bytes budget = *resident_.options().budget;
    if (!nothing.empty() || !with(nothing).estimate(budget)) return;
    std::optional<Plan> resident = resident_.keep(budget);
    if (resident && resident->predicted_ms < best->predicted_ms) best = std::move(resident);
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
    const int most = std::min(high, shares);
    for (const int share : {most, most + 1, 3 * most / 4, most / 2}) {
      if (share > 0 && share <= shares) offer(part(share));
      if (good_enough() && share > most) return;
    }
  }

  std::vector<Candidate> in_order(const std::vector<Kind>& kinds) const {
    std::vector<Candidate> result;
    for (const Kind kind : kinds)
      std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(result),
                   [&](const Candidate& candidate) { return candidate.kind == kind; });
    return result;
  }

  // Searches are quick: there are several, and most of what they would find is moved instead.
  Planner with(const Placement& placement) const {
    PlanOptions options = resident_.options();
    options.effort = Effort::quick;
    if (placement.empty()) return Planner(resident_.graph(), resident_.order(), options);
    const OrderedGraph made = with_transfers(resident_.graph(), resident_.order(), placement);
    return Planner(made.graph, made.order, options);
  }

  // Remembers the placement if a plan with it keeps the budget.
  void offer(const Placement& placement) {
    const Planner planner = with(placement);
    if (const auto ms = planner.estimate(*planner.options().budget))
      offers_.push_back({placement, *ms});
  }

  struct Offer {
    Placement placement;
    double ms;  // estimated
  };
  Planner& resident_;
  std::vector<Candidate> candidates_;
  Bytes total_;
  std::vector<Offer> offers_;
  int made_ = 0;  // plans
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

}  // namespace ebb::planning
