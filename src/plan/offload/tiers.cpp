#include "plan/offload/tiers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "ebb/error.h"
#include "plan/offload/candidates.h"
#include "plan/offload/start_lists.h"

namespace ebb::planning {
namespace {

constexpr int most_made = 3;  // plans that are made of the best offers
// Parts of each kind of candidates that may leave the device.
constexpr int parts = 16;
// Placements that are compared, by the size of the graph: each costs about as much as lowering it.
constexpr int most_offers = 32, fewest_offers = 18;
constexpr double offered_instructions = 60e3;
// Below this number of instructions, the recomputation of a plan that is made is searched anew.
constexpr std::size_t small_step = 800;

using Kind = Candidate::Kind;
constexpr int kinds = 3;

// How much of each kind leaves the device, of `parts`; by Kind.
using Shares = std::array<int, kinds>;

class TierSearch {
 public:
  explicit TierSearch(Planner& resident) : resident_(resident) {
    const Backend& backend = backend_of(resident.base().plan.device);
    for (const Tier tier : {Tier::host, Tier::disk})
      if (resident.options().offload.budgets[tier] > Bytes{} && tier != backend.second_tier())
        throw ValueError(fmt::format("[plan] tensors of {} can be moved to the tier {}, not to {}",
                                     to_string(resident.base().plan.device),
                                     name(backend.second_tier()), name(tier)));
    for (const Update& update : resident.graph().updates)
      updated_.insert(update.target.node().get());
    for (Candidate& candidate : candidates(resident))
      by_kind_[static_cast<std::size_t>(candidate.kind)].push_back(std::move(candidate));
    const auto instructions = static_cast<double>(resident.base().plan.instructions.size());
    most_offers_ = std::clamp(static_cast<int>(offered_instructions / (instructions + 1.0)),
                              fewest_offers, most_offers);
  }

  PlanResult run(double faster_than) {
    const std::optional<Bytes>& budget = resident_.options().budget;
    if (!budget || nothing_may_move()) {
      const Placement homes = place({}, {}, resident_);
      return homes.empty() ? resident_.run() : with(homes).run();
    }
    faster_than_ = faster_than;
    offer_all();
    if (best_ && best_->second >= faster_than) return {};
    std::stable_sort(offers_.begin(), offers_.end(),
                     [](const Offer& a, const Offer& b) { return a.sketch.ms < b.sketch.ms; });
    std::optional<Plan> best;
    for (Offer& each : offers_) {
      if (best && each.sketch.ms >= std::min(best->predicted_ms, faster_than)) break;
      std::optional<Plan> plan = made(each);
      if (plan && (!best || plan->predicted_ms < best->predicted_ms)) best = std::move(plan);
      if (best && ++made_ == most_made) break;
    }
    if (!best || best->predicted_ms > resident_.keep_all_ms()) compare_with_resident(best);
    if (best) return {std::move(best), {}};
    Plan least = least_plan();
    if (least.peak > *budget) return {{}, Planner::kept(least)};
    return {std::move(least), {}};
  }

  // The plan with the smallest peak: with everything outside the device that may be, or nothing.
  Plan least_plan() {
    Plan least = with(place({}, {}, resident_)).least();
    Plan other = with(placed({parts, parts, parts})).least();
    return other.peak < least.peak ? other : least;
  }

 private:
  struct Offer {
    Shares shares;
    Planner::Sketch sketch;
  };

  std::optional<Plan> made(Offer& offer) {
    const Bytes budget = *resident_.options().budget;
    const Placement placement = placed(offer.shares);
    if (placement.empty()) return resident_.keep(budget);
    if (resident_.base().plan.instructions.size() < small_step) {
      auto plan = with(placement, Recomputation::searched).keep(budget);
      if (plan) return plan;
    }
    return with(placement).keep(budget, std::move(offer.sketch.runs));
  }

  // Starts from placements with which nothing, or little, has to be recomputed, and changes the
  // shares of one kind or exchanges those of two, first by much and then by little, as long as that
  // makes the step faster.
  void offer_all() {
    for (const auto& order : {std::array{Kind::state, Kind::activation, Kind::weights},
                              std::array{Kind::activation, Kind::state, Kind::weights},
                              std::array{Kind::state, Kind::weights, Kind::activation}})
      start_along(order);
    offer({0, 0, 0});
    if (good_enough()) return;
    if (offers_.empty()) offer({parts, parts, parts});
    for (int by = parts / 4; by > 0 && !good_enough(); by /= 2)
      while (improve(by) && !good_enough()) {
      }
  }

  // What is outside the device is decided.
  bool nothing_may_move() const {
    return std::all_of(by_kind_.begin(), by_kind_.end(),
                       [](const auto& candidates) { return candidates.empty(); }) ||
           !resident_.options().offload.any();
  }

  // Copies of the best offer cost nothing that could be saved.
  bool good_enough() const { return best_ && best_->second <= 1.01 * resident_.keep_all_ms(); }

  // Finds by bisection the smallest part of the candidates, in this order of their kinds, that must
  // leave if nothing is recomputed; and, as long as copies take time, offers less of them with some
  // recomputation too.
  void start_along(const std::array<Kind, kinds>& order) {
    const Bytes budget = *resident_.options().budget;
    const auto at = [&](int place) {
      Shares shares{};
      for (const Kind kind : order) {
        shares[static_cast<std::size_t>(kind)] = std::clamp(place, 0, parts);
        place -= parts;
      }
      return shares;
    };
    constexpr int stride = 4, end = kinds * parts / stride;
    int low = 0, high = end + 1;  // too little leaves; enough does
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (with(placed(at(middle * stride))).keep_all_peak() <= budget ? high : low) = middle;
    }
    const int most = std::min(high, end);
    for (const int place : {most, most + 1, 3 * most / 4, most / 2})
      if (place > 0 && place <= end && !good_enough()) offer(at(place * stride));
  }

  bool improve(int by) {
    if (!best_) return false;
    const Shares from = best_->first;
    const double before = best_->second;
    std::vector<Shares> changes;
    for (std::size_t k = 0; k < kinds; ++k)
      for (const int sign : {-1, 1}) {
        Shares& one = changes.emplace_back(from);
        one[k] += sign * by;
      }
    for (std::size_t more = 0; more < kinds; ++more)
      for (std::size_t less = 0; less < kinds; ++less)
        if (more != less) {
          Shares& two = changes.emplace_back(from);
          two[more] += by, two[less] -= by;
        }
    for (Shares& change : changes) {
      for (int& share : change) share = std::clamp(share, 0, parts);
      offer(change);
    }
    return best_->second < 0.999 * before;
  }

  // Remembers the placement if a plan with it keeps the budget. Not tried again, and not if its
  // copies alone take longer than the best one, or than a plan that is known already.
  void offer(const Shares& shares) {
    if (tried_.size() >= static_cast<std::size_t>(most_offers_) || tried_.contains(shares)) return;
    const Placement placement = placed(shares);
    if (best_ && copies_ms(placement) >= std::min(best_->second, faster_than_)) return;
    tried_.insert(shares);
    auto sketch = with(placement).sketch(*resident_.options().budget);
    if (!sketch) return;
    if (!best_ || sketch->ms < best_->second) best_ = {shares, sketch->ms};
    offers_.push_back({shares, std::move(*sketch)});
  }

  // The time of the lane with more copies. Variables are walked in the order of their nodes, so
  // that rounding is the same in every run.
  double copies_ms(const Placement& placement) const {
    const Rates& rates = resident_.options().rates;
    double fetches = 0.0, stores = 0.0;
    const auto add = [&](Tier tier, Bytes bytes, std::size_t count, bool stored) {
      fetches += static_cast<double>(count) * rates.transfer_ms(tier, bytes, true);
      if (stored) stores += rates.transfer_ms(tier, bytes, false);
    };
    for (const auto& node : resident_.order()) {
      if (const auto found = placement.variables.find(node.get());
          found != placement.variables.end()) {
        const auto again = placement.fetched_again.find(node.get());
        add(found->second, node->outputs()[0].bytes(),
            1 + (again == placement.fetched_again.end() ? 0 : again->second.size()),
            updated_.contains(node.get()));
      }
      for (int k = 0; k < static_cast<int>(node->outputs().size()); ++k) {
        const Tensor result(node, k);
        if (const auto found = placement.activations.find(result);
            found != placement.activations.end())
          add(found->second.tier, result.type().bytes(), 1, true);
      }
    }
    return std::max(fetches, stores);
  }

  // The first candidates of each kind, up to its share of their bytes.
  Placement placed(const Shares& shares) const {
    std::vector<Candidate> all;
    Bytes total;
    for (std::size_t k = 0; k < kinds; ++k) {
      Bytes of_kind, taken;
      for (const Candidate& candidate : by_kind_[k]) of_kind += candidate.bytes;
      const Bytes most = of_kind - (parts - shares[k]) * (of_kind / parts);
      for (const Candidate& candidate : by_kind_[k]) {
        if (taken >= most || shares[k] == 0) break;
        taken += candidate.bytes;
        all.push_back(candidate);
      }
      total += taken;
    }
    return place(all, total, resident_);
  }

  // Sketches are rough. Recomputation alone is never faster than the plan that is chosen, whatever
  // they say.
  void compare_with_resident(std::optional<Plan>& best) {
    const Placement nothing = place({}, {}, resident_);
    const Bytes budget = *resident_.options().budget;
    if (!nothing.empty() || resident_.persistent() >= budget) return;
    std::optional<Plan> resident = resident_.keep(budget);
    if (resident && (!best || resident->predicted_ms < best->predicted_ms))
      best = std::move(resident);
  }

  // Searches are quick: there are several, and most of what they would find is moved instead.
  enum class Recomputation : bool { carried_over, searched };
  Planner with(const Placement& placement, Recomputation how = Recomputation::carried_over) {
    PlanOptions options = resident_.options();
    options.effort = Effort::quick;
    if (placement.empty()) return Planner(resident_.graph(), resident_.order(), options);
    const OrderedGraph copying = with_transfers(resident_.graph(), resident_.order(), placement);
    Planner planner(copying.graph, copying.order, options);
    if (planner.searches() && how == Recomputation::carried_over) {
      if (!starts_) starts_.emplace(resident_);
      planner.use(starts_->strategy(copying, planner));
    }
    return planner;
  }

  Planner& resident_;
  std::unordered_set<const Node*> updated_;  // variables whose new values are stored
  std::array<std::vector<Candidate>, kinds> by_kind_;
  std::optional<StartLists> starts_;
  double faster_than_ = std::numeric_limits<double>::infinity();  // ms: slower plans have no use
  int most_offers_ = 0;
  std::set<Shares> tried_;
  std::optional<std::pair<Shares, double>> best_;  // the fastest offer, and its milliseconds
  std::vector<Offer> offers_;
  int made_ = 0;  // plans
};

}  // namespace

bool uses_tiers(const Planner& resident) {
  return resident.options().offload.any() || !place({}, {}, resident).variables.empty();
}

PlanResult plan_in_tiers(Planner& resident, double faster_than) {
  return uses_tiers(resident) ? TierSearch(resident).run(faster_than) : resident.run();
}

KeptBudget least_in_tiers(Planner& resident) {
  return Planner::kept(TierSearch(resident).least_plan());
}

}  // namespace ebb::planning
