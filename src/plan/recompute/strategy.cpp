#include "plan/recompute/strategy.h"

#include "plan/gathers.h"
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

// A strategy with a fixed rule, which makes no decisions about gathered weights.
class Regathering : public Strategy {
 public:
  explicit Regathering(std::unique_ptr<const Strategy> rule) : rule_(std::move(rule)) {}
  std::string_view name() const override { return rule_->name(); }
  Runs decide(const Question& q) const override { return gather_again(q, rule_->decide(q)); }

 private:
  std::unique_ptr<const Strategy> rule_;
};

std::unique_ptr<const Strategy> rule_of(const Recompute& recompute) {
  switch (recompute.mode) {
    case Recompute::Mode::marked:
      return marked_strategy();
    case Recompute::Mode::blocks:
      return blocks_strategy();
    case Recompute::Mode::sqrt:
      return sqrt_strategy();
    case Recompute::Mode::segment:
      return segment_strategy(recompute.segment);
    case Recompute::Mode::selective:
      return selective_strategy();
    default:
      return keep_all_strategy();
  }
}

}  // namespace

std::vector<Runs> hand_made(const Question& question) {
  std::vector<Runs> starts;
  for (const auto& strategy : {selective_strategy(), blocks_strategy(), sqrt_strategy()}) {
    starts.push_back(strategy->decide(question));
    Runs gathered = gather_again(question, starts.back());
    if (gathered != starts.back()) starts.push_back(std::move(gathered));
  }
  return starts;
}

std::unique_ptr<const Strategy> make_strategy(const Recompute& recompute) {
  switch (recompute.mode) {
    case Recompute::Mode::none:
      return keep_all_strategy();
    case Recompute::Mode::greedy:
      return std::make_unique<Greedy>();
    case Recompute::Mode::automatic:
      return std::make_unique<Automatic>();
    default:
      return std::make_unique<Regathering>(rule_of(recompute));
  }
}

}  // namespace ebb::planning
