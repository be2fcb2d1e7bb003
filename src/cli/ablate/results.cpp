#include "cli/ablate/results.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/page_data.h"
#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* format_name = "ebb ablation 1";

double digits(double value, int count = 9) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.{}g}", value, count)) : value;
}

CategoryBytes categories_from(const Json& object) {
  CategoryBytes bytes;
  for (int c = 0; c < category_count; ++c)
    bytes[static_cast<Category>(c)] = {
        object.at(std::string(name(static_cast<Category>(c)))).get<std::int64_t>()};
  return bytes;
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

Row row_from(const Json& object) {
  Row row{object.at("name"), object.at("techniques")};
  if (!object.contains("step_ms")) return row;  // to be tried again
  row.planned.peak = {object.at("planned_peak_bytes").get<std::int64_t>()};
  row.planned.arena = {object.at("planned_arena_bytes").get<std::int64_t>()};
  row.planned.at_peak = categories_from(object.at("planned_by_category"));
  row.planned.predicted_ms = object.at("predicted_step_ms");
  row.planned.overhead = object.at("overhead");
  row.planned.plan_ms = object.at("plan_ms");
  row.planned.instructions = object.at("instructions");
  row.planned.recomputed = object.at("recomputed_nodes");
  if (object.contains("budget_bytes"))
    row.planned.budget = Bytes{object["budget_bytes"].get<std::int64_t>()};
  row.measured.total = {object.at("measured_peak_bytes").get<std::int64_t>()};
  row.measured.staying = categories_from(object.at("measured_staying_by_category"));
  row.run_ms = object.at("step_ms").at("runs").get<std::vector<double>>();
  for (const Json& loss : object.at("losses"))  // JSON has no other numbers than finite ones
    row.losses.push_back(loss.is_null() ? std::nan("") : loss.get<double>());
  return row;
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

Json read(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw FileError(
        fmt::format("{}: cannot be read; is there a study to go on with?", path.string()));
  const std::string text = data::File(path).text();
  try {
    return parse_ordered_json(text);
  } catch (const ValueError& e) {
    throw FileError(fmt::format("{}: {}", path.string(), e.what()));
  }
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

std::vector<Row> load_rows(const fs::path& folder, const Json& settings) {
  const fs::path path = folder / "results.json";
  const Json old = read(path), timelines = read(folder / "timelines.json");
  std::vector<Row> rows;
  try {
    if (old.at("format") != format_name)
      throw FileError(fmt::format("{}: expected the format \"{}\", but it says {}", path.string(),
                                  format_name, json_text(old.at("format"))));
    Json all = old.at("settings");  // what one of the two has and the other has not, too
    all.update(settings);
    for (const auto& [key, value] : all.items()) {  // as text: paths may not be UTF-8
      const std::string before = json_text(old.at("settings").value(key, Json())),
                        now = json_text(settings.value(key, Json()));
      if (before != now)
        throw FileError(
            fmt::format("{}: cannot go on with it: it was made with another {}: {}, not {}",
                        path.string(), key, before, now));
    }
    for (const Json& object : old.at("rows")) {
      rows.push_back(row_from(object));
      if (rows.back().done())
        rows.back().planned.timeline = json_text(timelines.at(rows.back().name));
    }
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{}: not a study's results: {}", path.string(), plain_text(error)));
  }
  return rows;
}

}  // namespace ebb::cli
