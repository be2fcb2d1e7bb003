#include "plan/recompute/moves.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ebb::planning {
namespace {

constexpr std::size_t longest_chain = 96;  // steps to recompute one value; more are never cheap

}  // namespace

std::vector<double> above(const Simulation& simulation, const Runs& runs, std::int64_t target) {
  std::vector<double> result;
  int furthest = -1;  // step
  std::int64_t counted = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (runs[r] > furthest) furthest = runs[r], counted = 0;
    const std::int64_t more = std::max(counted, simulation.profile()[r] - target) - counted;
    result.push_back(static_cast<double>(more));
    counted += more;
  }
  return result;
}

Runs applied(const Runs& runs, const std::vector<const Move*>& moves) {
  std::vector<std::pair<int, int>> inserts;  // (run, step to insert before it)
  for (const Move* move : moves)
    for (int step : move->steps) inserts.emplace_back(move->before, step);
  std::sort(inserts.begin(), inserts.end());
  inserts.erase(std::unique(inserts.begin(), inserts.end()), inserts.end());
  Runs result;
  result.reserve(runs.size() + inserts.size());
  auto next = inserts.begin();
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (; next != inserts.end() && next->first == static_cast<int>(r); ++next)
      result.push_back(next->second);
    result.push_back(runs[r]);
  }
  return result;
}

MoveFinder::MoveFinder(const Simulation& simulation)
    : model_(simulation.model()), simulation_(simulation) {
  seen_.resize(model_.steps.size());
  newest_.resize(model_.values.size());
  for (std::size_t v = 0; v < model_.values.size(); ++v)
    last_anchor_.push_back(droppable(model_, static_cast<int>(v))
                               ? simulation.valid_until(model_.values[v].producer)
                               : -1);
}

std::int64_t MoveFinder::bytes(int copy) const {
  const Copy& c = simulation_.copies()[static_cast<std::size_t>(copy)];
  return simulation_.bytes(c.value);
}

double MoveFinder::weight(int after, int before) const {
  return before - after > 1 ? above_[static_cast<std::size_t>(before)] -
                                  above_[static_cast<std::size_t>(after) + 1]
                            : 0.0;
}

std::vector<const Move*> MoveFinder::find(const Runs& runs, std::int64_t target) {
  above_ = above(simulation_, runs, target);
  std::inclusive_scan(above_.begin(), above_.end(), above_.begin());
  above_.insert(above_.begin(), 0.0);
  const std::vector<Copy>& copies = simulation_.copies();
  touched_.clear();
  for (const Copy& copy : copies) touched_.push_back(copy.made);
  anchors_ = 0;
  std::fill(newest_.begin(), newest_.end(), -1);
  int next = 0;  // copy
  const auto make = [&](int end) {
    for (; next < end; ++next) {
      const int value = copies[static_cast<std::size_t>(next)].value;
      int& newest = newest_[static_cast<std::size_t>(value)];
      if (newest < 0 || last_anchor_[static_cast<std::size_t>(value)] >= 0) newest = next;
    }
  };
  count_ = 0;
  for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
    make(simulation_.first_made(r));
    for (int copy : simulation_.reads(r)) {
      int& touched = touched_[static_cast<std::size_t>(copy)];
      consider(copy, touched, r);
      touched = r;
    }
    if (simulation_.anchor(runs[static_cast<std::size_t>(r)]) == anchors_) ++anchors_;
  }
  std::vector<const Move*> found;
  for (std::size_t i = 0; i < count_; ++i) found.push_back(&moves_[i]);
  std::stable_sort(found.begin(), found.end(),
                   [](const Move* a, const Move* b) { return a->score > b->score; });
  return found;
}

void MoveFinder::consider(int copy, int after, int before) {
  if (weight(after, before) <= 0.0 ||
      !possible(simulation_.copies()[static_cast<std::size_t>(copy)].value))
    return;
  if (moves_.size() < count_ + 2) moves_.resize(count_ + 2);
  Move &again = moves_[count_], &hold = moves_[count_ + 1];
  again.copy = hold.copy = copy, again.after = hold.after = after;
  again.before = hold.before = before;
  price(hold, Missing::hold, 0.0);
  price(again, Missing::again, hold.score);
  if (hold.score > again.score) std::swap(again, hold);
  if (again.score > 0.0) ++count_;
}

// Finds the steps that recompute the move's value, and the score. The score is 0 if there are too
// many steps, if it would be below `least_score`, or if with Missing::hold no recomputable input is
// kept longer, so that the move equals that with Missing::again.
void MoveFinder::price(Move& move, Missing missing, double least_score) {
  const std::vector<Copy>& copies = simulation_.copies();
  move.steps.clear(), move.longer.clear(), move.sources.clear();
  move.score = 0.0;
  const double most = static_cast<double>(bytes(move.copy)) * weight(move.after, move.before);
  ++search_;
  stack_.clear();
  const auto reach = [&](int value) {
    const int step = model_.values[static_cast<std::size_t>(value)].producer;
    if (std::exchange(seen_[static_cast<std::size_t>(step)], search_) != search_)
      stack_.push_back(step);
  };
  reach(copies[static_cast<std::size_t>(move.copy)].value);
  bool held = false;
  double ms = 0.0;
  while (!stack_.empty()) {
    const int s = stack_.back();
    stack_.pop_back();
    move.steps.push_back(s);
    ms += model_.steps[static_cast<std::size_t>(s)].ms;
    if (move.steps.size() > longest_chain || most < least_score * ms) return;
    for (int input : simulation_.inputs(s)) {
      const int copy = newest_[static_cast<std::size_t>(input)];
      const Copy& c = copies[static_cast<std::size_t>(copy)];
      if (!c.in_arena) continue;
      if (c.last >= move.before) {
        move.sources.push_back(copy);
      } else if (missing == Missing::again && possible(input)) {
        reach(input);
      } else {
        held |= possible(input);
        if (std::find(move.longer.begin(), move.longer.end(), copy) == move.longer.end())
          move.longer.push_back(copy);
      }
    }
  }
  if (missing == Missing::hold && !held) return;
  double freed = most;
  for (int longer : move.longer)
    freed -= static_cast<double>(bytes(longer)) *
             weight(copies[static_cast<std::size_t>(longer)].last, move.before);
  move.score = freed / std::max(ms, 1e-9);
}

}  // namespace ebb::planning
