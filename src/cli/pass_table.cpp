#include "cli/pass_table.h"

#include <fmt/format.h>

namespace ebb::cli {

PassTable pass_table(const Graph& graph, const CompileOptions& compile,
                     const PlanningOptions& planning, std::int64_t micro_batches) {
  PassTable table;
  table.stages = {
      {"precision", "dtypes of products, activations and parameters", planning.precision},
      {"accumulate", "micro-batches, one after the other", std::to_string(micro_batches)}};
  run_passes(graph, compile.passes.value_or(all_pass_names()), &table.passes);
  return table;
}

nlohmann::ordered_json to_json(const PassTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const TraceStage& stage : table.stages)
    rows.push_back({{"name", stage.name}, {"traced", true}, {"setting", stage.setting}});
  for (const PassEffect& effect : table.passes) {
    rows.push_back({{"name", effect.pass->name}, {"traced", false}, {"ran", effect.ran}});
    if (effect.ran)
      rows.back().update(
          {{"nodes_before", effect.nodes_before}, {"nodes_after", effect.nodes_after}});
  }
  return rows;
}

std::string to_string(const PassTable& table) {
  std::string text = "while the step is traced\n";
  for (const TraceStage& stage : table.stages)
    text += fmt::format("  {:<16} {:<16}  {}\n", stage.name, stage.setting, stage.summary);
  text += "passes, in order, with nodes before and after\n";
  for (const PassEffect& effect : table.passes)
    text += fmt::format(
        "  {:<16} {:<16}  {}\n", effect.pass->name,
        effect.ran ? fmt::format("{} → {}", effect.nodes_before, effect.nodes_after) : "left out",
        effect.pass->summary);
  return text;
}

}  // namespace ebb::cli
