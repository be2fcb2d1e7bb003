// The state of an engine.
#pragma once

#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "ebb/mlo/engine.h"
#include "ebb/report/run_log.h"
#include "mlo/homes.h"
#include "mlo/level.h"

namespace ebb::mlo {

struct Engine::State {
  std::shared_ptr<Arena> arena;
  std::unique_ptr<report::RunLog> log;
  std::vector<std::unique_ptr<Level>> levels;  // in the order of the problems
  std::vector<std::uint64_t> seeds;            // of each
  std::vector<Level*> leaves, upwards;         // upwards: each level after those below it
  bool materialised = false;
  Homes homes;                 // outside the device
  bool homes_settled = false;  // homes are decided before the first plan

  std::int64_t global_step = 0;
  bool intact = true;
  double best = std::numeric_limits<double>::infinity();  // of early stopping's metric, or minus it
  std::int64_t waited = 0;                                // validations without improvement
  bool stopped = false;

  // Decides which variables are outside the device.
  void settle_homes(const CompileOptions& compile);
  // Moves those variables there, and draws the initial weights of problems that have none yet.
  void materialise(const CompileOptions& compile);
  std::set<TierBlock*> blocks() const;  // that variables are in
  void judge(const Stats& stats, const EarlyStopping& rule);
};

}  // namespace ebb::mlo
