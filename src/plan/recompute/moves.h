// Changes of a list of runs that free memory where it exceeds a target, with an estimate of what
// each frees and costs. The exact effect is found by simulation.
#pragma once

#include <vector>

#include "plan/recompute/simulation.h"

namespace ebb::planning {

// Recomputes a value just before a run that reads it, instead of keeping it until then.
struct Move {
  int before = 0;            // the run that reads it
  std::vector<int> steps;    // to be inserted before that run
  int copy = 0;              // freed between the runs `after` and `before`, both excluded
  int after = 0;             // the last run before `before` that makes or reads the copy
  std::vector<int> longer;   // copies to keep live from their last reader to `before` instead
  std::vector<int> sources;  // copies that `steps` read and that are live until `before` anyway
  double score = 0.0;        // bytes freed × excess over the target, per millisecond
};

// By how many bytes each run exceeds the target. Per original step, that is a first run and the
// recomputations after it, only the largest excess counts: the sum does not grow with their number.
std::vector<double> above(const Simulation& simulation, const Runs& runs, std::int64_t target);

// The list with the steps of all moves inserted.
Runs applied(const Runs& runs, const std::vector<const Move*>& moves);

class MoveFinder {
 public:
  explicit MoveFinder(const Simulation& simulation);

  // The moves that free memory where `runs`, which must have been simulated last, exceeds `target`,
  // best score first. The pointers are valid until the next call.
  std::vector<const Move*> find(const Runs& runs, std::int64_t target);

 private:
  // Inputs that are no longer live are recomputed too, or kept longer.
  enum class Missing : bool { again, hold };
  void consider(int copy, int after, int before);
  void price(Move& move, Missing missing, double least_score);
  std::int64_t bytes(int copy) const;
  double weight(int after, int before) const;  // excess, summed over the runs between

  bool possible(int value) const {
    return last_anchor_[static_cast<std::size_t>(value)] >= anchors_;
  }

  const StepModel& model_;
  const Simulation& simulation_;
  std::vector<int> last_anchor_;  // by value: recomputable up to this many anchors; -1: not at all
  std::vector<double> above_;     // prefix sums over runs
  // While going through the runs: the newest copy of every value, the last run that made or read
  // each copy, and how many anchors have run.
  std::vector<int> newest_, touched_;
  int anchors_ = 0;
  std::vector<int> seen_;  // for every step, the number of the search that reached it last
  int search_ = 0;
  std::vector<int> stack_;
  std::vector<Move> moves_;  // the first `count_` are valid; the rest keep memory for reuse
  std::size_t count_ = 0;
};

}  // namespace ebb::planning
