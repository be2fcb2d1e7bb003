#include "cli/ablate/results.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/page_data.h"
#include "core/json.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

double digits(double value, int count = 9) {
  if (!std::isfinite(value)) return value;
  return std::strtod(fmt::format("{:.{}g}", value, count).c_str(), nullptr);
}

Json row_json(const Row& row, const Row* baseline) {
  Json object{{"name", row.name}, {"techniques", row.techniques}};
  if (row.error) object["error"] = *row.error;
  if (!row.done()) return object;
  std::vector<double> runs;
  for (double ms : row.run_ms) runs.push_back(digits(ms, 6));
  object["planned_peak_bytes"] = row.planned.peak.count;
  object["measured_peak_bytes"] = row.measured.total.count;
  object["planned_by_category"] = by_category(row.planned.at_peak);
  object["planned_arena_bytes"] = row.planned.arena.count;
  object["measured_staying_by_category"] = by_category(row.measured.staying);
  object["measured_transient_bytes"] = row.measured.transient().count;
  object["step_ms"] = {{"median", digits(row.median_ms(), 6)},
                       {"low", digits(row.low_ms(), 6)},
                       {"high", digits(row.high_ms(), 6)},
                       {"runs", runs}};
  object["predicted_step_ms"] = digits(row.planned.predicted_ms, 6);
  object["overhead"] = digits(row.planned.overhead, 6);
  object["plan_ms"] = digits(row.planned.plan_ms, 4);
  object["instructions"] = row.planned.instructions;
  object["recomputed_nodes"] = row.planned.recomputed;
  if (row.planned.budget) object["budget_bytes"] = row.planned.budget->count;
  object["loss"] = digits(row.loss());
  if (baseline) {
    object["memory_ratio"] = digits(static_cast<double>(row.planned.peak.count) /
                                        static_cast<double>(baseline->planned.peak.count),
                                    6);
    object["time_ratio"] = digits(row.median_ms() / baseline->median_ms(), 6);
    if (tell_of_training(baseline->losses))
      object["same_losses_as_baseline"] = same_losses(row.losses, baseline->losses);
  }
  object["losses"] = row.losses;
  return object;
}

// {"baseline": {…}, …}: each row's timeline as it is.
std::string timelines_text(const std::vector<Row>& rows) {
  std::string text = "{";
  for (const Row& row : rows)
    if (row.done())
      text += fmt::format("{}{}:{}", text.size() > 1 ? ",\n" : "\n", json_text(Json(row.name)),
                          row.planned.timeline);
  return text + "\n}\n";
}

}  // namespace

const Row* Results::baseline() const {
  return !rows.empty() && rows.front().done() ? &rows.front() : nullptr;
}

namespace {

PageData page_of(const Results& results) {
  PageData page("ablation", results.facts, results.settings);
  for (const Row& row : results.rows)
    if (row.done() || row.error)
      page.add_row(row_json(row, results.baseline()), row.done() ? row.planned.timeline : "");
  for (const auto& [row, points] : results.curves) page.add_curve(row, points);
  return page;
}

}  // namespace

Json to_json(const Results& results) { return page_of(results).study(); }

std::string to_page(const Results& results) {
  return page_of(results).html(
      fmt::format("ebb: ablation of {}", results.settings.value("workload", "")));
}

void save_rows(const Results& results, const fs::path& folder) {
  make_folder(folder);
  write_file(folder / "results.json", json_text(to_json(results), 1) + "\n");
  write_file(folder / "timelines.json", timelines_text(results.rows));
}

void save(const Results& results, const fs::path& folder) {
  save_rows(results, folder);
  write_file(folder / "results.csv", to_csv(results));
  write_file(folder / "results.md", to_markdown(results));
  write_file(folder / "report.html", to_page(results));
}

}  // namespace ebb::cli
