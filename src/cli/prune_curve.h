// `ebb frontier --prune`: loss against bytes for several shares of removed heads, neurons or
// channels.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/planning.h"

namespace ebb::cli {

struct PruneCurveOptions {
  std::vector<double> shares;  // each from 0 to below 1
  std::int64_t recover = 0;    // steps of training after pruning, before the loss is measured
  std::int64_t eval_batches = 8;
  bool overcommit = false;
};

struct PrunePoint {
  double share = 0.0;
  std::int64_t parameters = 0;
  Bytes weights = {}, bytes = {};  // of the model; of weights, gradients and state of a step
  Bytes peak = {};                 // of the planned step
  double predicted_ms = 0.0;       // of a step
  double loss = 0.0;               // of test data
};

// The dense model first, then one point for each share, from the smallest. Every point starts from
// the same weights; groups of the smallest magnitude are removed.
std::vector<PrunePoint> prune_curve(const workloads::Options& workload,
                                    const PlanningOptions& planning, const Rates& rates,
                                    const PruneCurveOptions& options);

nlohmann::ordered_json to_json(const std::vector<PrunePoint>& points);
std::string to_table(const std::vector<PrunePoint>& points);

}  // namespace ebb::cli
