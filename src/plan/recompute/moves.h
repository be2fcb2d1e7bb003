// Single changes of a set of decisions that lower memory where there is too much of it, with what
// each would free and cost. Estimates: the simulation has the last word.
#pragma once

#include <utility>
#include <vector>

#include "plan/recompute/simulation.h"

namespace ebb {

struct Move {
  std::vector<std::pair<int, Hold>> changes;  // gap → its new choice
  // Steps (excluded on both sides) over which `bytes` are freed, and values held longer instead.
  int after = 0, before = 0;
  std::int64_t bytes = 0;
  struct Longer {
    int value = 0, after = 0;  // held from `after` to the move's `before`
  };
  std::vector<Longer> longer;
  int value = 0;
  std::vector<int> sources;  // values it would be computed again from
  double score = 0.0;        // bytes freed where they are too many, for each millisecond
};

class MoveFinder {
 public:
  explicit MoveFinder(const StepModel& model);

  // The moves that free bytes at steps where the simulation is above `target`, best first.
  const std::vector<Move>& find(const Simulation& simulation, const Holds& holds,
                                std::int64_t target);

 private:
  bool present(int value, int step) const;
  // What computing the move's value again just before `step` takes; false when it cannot be done,
  // or nothing differs. Inputs that died for good are held longer when `hold_inputs`, and otherwise
  // computed again too.
  bool price(Move& move, int step, bool hold_inputs, double& ms);
  double weight(int after, int before) const;  // bytes above the target, summed over steps

  const StepModel& model_;
  const Simulation* simulation_ = nullptr;
  std::vector<double> above_;                 // prefix sums over steps
  std::vector<int> idle_begin_, idle_order_;  // idle stretches by value
  std::vector<int> event_begin_;              // first event before each step
  std::vector<int> seen_;
  int search_ = 0;
  std::vector<int> stack_;
  std::vector<Move> moves_;
};

}  // namespace ebb
