#include "plan/recompute/moves.h"

#include <algorithm>
#include <numeric>

namespace ebb {
namespace {

constexpr std::size_t longest_chain = 96;  // of steps for one value; longer is never cheap

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
  std::vector<std::pair<int, int>> inserts;  // before a run, a step
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
}

std::int64_t MoveFinder::bytes(int copy) const {
  const Copy& c = simulation_.copies()[static_cast<std::size_t>(copy)];
  return model_.values[static_cast<std::size_t>(c.value)].bytes;
}

double MoveFinder::weight(int after, int before) const {
  return before - after > 1 ? above_[static_cast<std::size_t>(before)] -
                                  above_[static_cast<std::size_t>(after) + 1]
                            : 0.0;
}

const std::vector<Move>& MoveFinder::find(const Runs& runs, std::int64_t target) {
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
      if (newest < 0 || droppable(model_, value)) newest = next;
    }
  };
  moves_.clear();
  for (int r = 0; r < static_cast<int>(runs.size()); ++r) {
    make(simulation_.first_made(r));
    for (int copy : simulation_.reads(r)) {
      int& touched = touched_[static_cast<std::size_t>(copy)];
      consider(copy, touched, r);
      touched = r;
    }
    if (simulation_.anchor(runs[static_cast<std::size_t>(r)]) == anchors_) ++anchors_;
  }
  std::stable_sort(moves_.begin(), moves_.end(),
                   [](const Move& a, const Move& b) { return a.score > b.score; });
  return moves_;
}

void MoveFinder::consider(int copy, int after, int before) {
  const double gain = weight(after, before);
  const Copy& c = simulation_.copies()[static_cast<std::size_t>(copy)];
  if (gain <= 0.0 || !droppable(model_, c.value)) return;
  Move best;
  for (Missing missing : {Missing::again, Missing::hold}) {
    Move move;
    move.copy = copy, move.after = after, move.before = before;
    double ms = 0.0;
    if (!price(move, missing, ms)) continue;
    double freed = static_cast<double>(bytes(copy)) * gain;
    for (int longer : move.longer)
      freed -= static_cast<double>(bytes(longer)) *
               weight(simulation_.copies()[static_cast<std::size_t>(longer)].last, before);
    move.score = freed / std::max(ms, 1e-9);
    if (move.score > best.score) best = std::move(move);
  }
  if (best.score > 0.0) moves_.push_back(std::move(best));
}

// What computing the move's value again takes; false when it cannot be done, or when nothing is
// held that could be.
bool MoveFinder::price(Move& move, Missing missing, double& ms) {
  const std::vector<Copy>& copies = simulation_.copies();
  ++search_;
  stack_.clear();
  const auto reach = [&](int step) {
    if (seen_[static_cast<std::size_t>(step)] == search_) return;
    seen_[static_cast<std::size_t>(step)] = search_;
    stack_.push_back(step);
  };
  const auto possible = [&](int value) {
    return droppable(model_, value) &&
           simulation_.valid_until(model_.values[static_cast<std::size_t>(value)].producer) >=
               anchors_;
  };
  const int value = copies[static_cast<std::size_t>(move.copy)].value;
  if (!possible(value)) return false;
  reach(model_.values[static_cast<std::size_t>(value)].producer);
  bool held = false;
  while (!stack_.empty()) {
    const int s = stack_.back();
    stack_.pop_back();
    const ModelStep& again = model_.steps[static_cast<std::size_t>(s)];
    move.steps.push_back(s);
    if (move.steps.size() > longest_chain) return false;
    ms += again.ms;
    for (int input : again.inputs) {
      const int copy = newest_[static_cast<std::size_t>(input)];
      const Copy& c = copies[static_cast<std::size_t>(copy)];
      if (!c.in_arena) continue;
      if (c.last >= move.before) {
        move.sources.push_back(copy);
      } else if (missing == Missing::again && possible(input)) {
        reach(model_.values[static_cast<std::size_t>(input)].producer);
      } else {
        held |= possible(input);
        if (std::find(move.longer.begin(), move.longer.end(), copy) == move.longer.end())
          move.longer.push_back(copy);
      }
    }
  }
  return held || missing == Missing::again;
}

}  // namespace ebb
