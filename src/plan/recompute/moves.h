// Changes of a list of runs that lower memory where there is too much of it, with what each would
// free and cost. Estimates: the simulation has the last word.
#pragma once

#include <vector>

#include "plan/recompute/simulation.h"

namespace ebb {

// Computes a value again just before a run that reads it, instead of keeping it until then.
struct Move {
  int before = 0;          // run
  std::vector<int> steps;  // that run then
  int copy = 0;            // that is freed: between the runs `after` and `before`, both excluded
  int after = 0;
  std::vector<int> longer;   // copies that are held until then instead, from their last reader
  std::vector<int> sources;  // copies that must still be there, as they are now
  double score = 0.0;        // bytes freed where they are too many, for each millisecond
};

// How far each run is above the target. Of a run and those computed again before the next one only
// the highest counts, so that a sum does not grow with the number of runs.
std::vector<double> above(const Simulation& simulation, const Runs& runs, std::int64_t target);

// Inserts the steps of all of them.
Runs applied(const Runs& runs, const std::vector<const Move*>& moves);

class MoveFinder {
 public:
  explicit MoveFinder(const Simulation& simulation);

  // The moves that free bytes where `runs`, simulated last, are above `target`, best first. They
  // stand until the next call.
  std::vector<const Move*> find(const Runs& runs, std::int64_t target);

 private:
  // Inputs that are not there any more are computed again too, or held longer.
  enum class Missing : bool { again, hold };
  void consider(int copy, int after, int before);
  void price(Move& move, Missing missing, double least_score);
  std::int64_t bytes(int copy) const;
  double weight(int after, int before) const;  // bytes above the target, summed over runs

  bool possible(int value) const {
    return last_anchor_[static_cast<std::size_t>(value)] >= anchors_;
  }

  const StepModel& model_;
  const Simulation& simulation_;
  std::vector<int> last_anchor_;  // of every value: until when it can be made again; -1: never
  std::vector<double> above_;     // prefix sums over runs
  // While going through the runs: the newest copy of every value, the last run that touched each
  // copy, and how many anchors have run.
  std::vector<int> newest_, touched_;
  int anchors_ = 0;
  std::vector<int> seen_;  // of every step: number of the search that reached it last
  int search_ = 0;
  std::vector<int> stack_;
  std::vector<Move> moves_;  // the first `count_`; the others lend their memory
  std::size_t count_ = 0;
};

}  // namespace ebb
