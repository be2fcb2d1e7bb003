// Random changes of a list of runs, from which a local search starts again.
#pragma once

#include <cstdint>
#include <random>

#include "plan/recompute/simulation.h"

namespace ebb::planning {

class Kicks {
 public:
  explicit Kicks(Simulation& simulation) : model_(simulation.model()), simulation_(simulation) {}

  // Makes a few changes close to one another. The result is a valid list (see Runs).
  Runs operator()(Runs runs);

 private:
  void change(Runs& runs, int at);
  void insert(Runs& runs, int at);
  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  const StepModel& model_;
  Simulation& simulation_;
  std::mt19937_64 random_{20};  // fixed seed: planning is deterministic
};

}  // namespace ebb::planning
