// The least time within a limit: descend, take back what was not needed, then anneal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "plan/recompute/moves.h"
#include "plan/recompute/simulation.h"

namespace ebb {

class Search {
 public:
  explicit Search(const StepModel& model);

  // Decisions whose peak is at most `limit` bytes, or nothing. `starts` are further decisions to
  // begin from, besides keeping all.
  std::optional<Holds> solve(std::int64_t limit, std::span<const Holds> starts = {});

  // As few bytes as it can reach, whatever the time.
  Holds least(std::span<const Holds> starts = {});

  std::int64_t peak_of(const Holds& holds);
  double ms_of(const Holds& holds);

  // One value after the other until the limit is kept: the simplest of these searches.
  Holds greedy(std::int64_t limit);

 private:
  enum class Batch : bool { single, many };
  bool descend(Holds& holds, std::int64_t target, Batch batch);
  std::vector<const Move*> choose(const std::vector<Move>& moves, std::int64_t target, Batch batch);
  double above(std::int64_t target) const;  // of the last simulation, summed over steps
  void take_back(Holds& holds, std::int64_t limit);
  enum class Goal : bool { time, memory };
  void anneal(Holds& holds, std::int64_t limit, Goal goal);

  const StepModel& model_;
  Simulation simulation_;
  MoveFinder finder_;
  Holds kept_;  // keep all
};

}  // namespace ebb
