#include "plan/recompute/strategy.h"

#include "plan/recompute/by_hand.h"
#include "plan/recompute/search.h"

namespace ebb::planning {
namespace {

class Greedy : public Strategy {
 public:
  std::string_view name() const override { return "greedy"; }
  Runs decide(const Question& q) const override { return Search(q.model).greedy(q.limit); }
};

class Automatic : public Strategy {
 public:
  std::string_view name() const override { return "auto"; }
  Runs decide(const Question& q) const override {
    return Search(q.model, q.effort).solve(q.limit, hand_made(q)).value_or(keep_all(q.model));
  }
};

}  // namespace

std::vector<Runs> hand_made(const Question& question) {
  std::vector<Runs> starts;
  for (const auto& strategy : {selective_strategy(), blocks_strategy(), sqrt_strategy()})
    starts.push_back(strategy->decide(question));
  return starts;
}

std::unique_ptr<const Strategy> make_strategy(const Recompute& recompute) {
  switch (recompute.mode) {
    case Recompute::Mode::marked:
      return marked_strategy();
    case Recompute::Mode::none:
      break;
    case Recompute::Mode::blocks:
      return blocks_strategy();
    case Recompute::Mode::sqrt:
      return sqrt_strategy();
    case Recompute::Mode::segment:
      return segment_strategy(recompute.segment);
    case Recompute::Mode::selective:
      return selective_strategy();
    case Recompute::Mode::greedy:
      return std::make_unique<Greedy>();
    case Recompute::Mode::automatic:
      return std::make_unique<Automatic>();
  }
  return keep_all_strategy();
}

}  // namespace ebb::planning
