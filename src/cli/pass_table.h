// `ebb plan --passes`: lists what turns a model into the graph that is planned, in order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/planning.h"
#include "ebb/passes.h"

namespace ebb::cli {

// A stage of tracing a step, before there is a graph for passes. Precision decides the dtypes that
// gradients are then derived from, and accumulation calls the model once for each micro-batch;
// neither can be a rewrite of the finished step.
struct TraceStage {
  std::string_view name, summary;
  std::string setting;
};

struct PassTable {
  std::vector<TraceStage> stages;
  std::vector<PassEffect> passes;
};

// Runs the passes of `compile` on the graph of a step that was traced for these options.
PassTable pass_table(const Graph& graph, const CompileOptions& compile,
                     const PlanningOptions& planning, std::int64_t micro_batches);

nlohmann::ordered_json to_json(const PassTable& table);
std::string to_string(const PassTable& table);

}  // namespace ebb::cli
