// Searches for the least time within a memory limit: descends by the moves that free most per
// millisecond, removes unneeded runs, exchanges runs for others, and repeats from random changes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "plan/recompute/moves.h"
#include "plan/recompute/simulation.h"

namespace ebb::planning {

class Search {
 public:
  explicit Search(const StepModel& model, Effort effort = Effort::thorough);

  // Runs whose peak is at most `limit` bytes, or nothing if it finds none. `starts` are lists to
  // start from besides `keep_all`.
  std::optional<Runs> solve(std::int64_t limit, std::span<const Runs> starts = {});

  // Runs with the lowest peak that the search reaches, regardless of time. For a lower limit
  // `solve` almost always finds nothing.
  Runs least(std::span<const Runs> starts = {});

  // Lists with smaller and smaller peaks, the first without recomputation.
  std::vector<Runs> ladder();

  // Like `solve`, but quickly and from lists that may be close to the limit. Returns the fastest
  // list that keeps the limit, without the runs that it does not need. If none keeps it, lowers the
  // list with the lowest peak further; the result may then exceed the limit.
  Runs nearest(std::int64_t limit, std::span<const Runs> lists);

  std::int64_t peak_of(Runs runs);
  double ms_of(Runs runs);

  // Applies one move at a time until the limit is kept: the simplest of these searches.
  Runs greedy(std::int64_t limit);

 private:
  bool simulate(Runs& runs);
  enum class Batch : bool { single, many };
  // Identifies a move: the recomputed value, and the step that it is recomputed for.
  using Name = std::pair<int, int>;
  bool descend(Runs& runs, std::int64_t target, Batch batch, std::set<Name> refused = {},
               double enough = std::numeric_limits<double>::infinity());
  std::vector<const Move*> choose(const std::vector<const Move*>& moves, std::int64_t target,
                                  Batch batch);
  bool reorder(Runs& runs, std::int64_t target);
  double excess(const Runs& runs, std::int64_t target) const;
  void take_back(Runs& runs, std::int64_t limit);
  std::vector<int> fitting(const Runs& runs, std::int64_t limit);

  struct Found {
    Runs runs;
    std::int64_t above;  // the larger of peak and limit
    double ms;
    bool operator<(const Found& other) const {
      return above != other.above ? above < other.above : ms < other.ms;
    }
  };
  Found found(Runs runs, std::int64_t limit);
  Found lowered(Found best, std::int64_t limit, double enough, const Runs* start = nullptr);
  Found lowest(std::int64_t limit, std::span<const Runs> starts);
  Found exchange(Found best, std::int64_t limit);
  Found wander(Found best, std::int64_t limit, double work);

  const StepModel& model_;
  Effort effort_;
  Simulation simulation_;
  MoveFinder finder_;
  Runs kept_;          // the list without recomputation
  double work_ = 0.0;  // number of runs simulated so far
};

}  // namespace ebb::planning
