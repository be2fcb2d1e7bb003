// Reads the results of a study that was ended early.
#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/ablate/results.h"
#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"

namespace ebb::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* format_name = "ebb ablation 1";

// Sums of a few such numbers do not overflow.
constexpr std::int64_t largest_size = std::int64_t{1} << 60;

// The magnitude is at most `most`.
std::int64_t whole_number(const Json& object, const std::string& field, std::int64_t most) {
  const Json& value = object.at(field);
  const std::int64_t number = value.is_number_integer() ? value.get<std::int64_t>() : 0;
  if (!value.is_number_integer() || number < -most || number > most ||
      (value.is_number_unsigned() && number < 0))  // above 2^63
    throw ValueError(fmt::format("\"{}\" must be a whole number of at most {}, but is {}", field,
                                 most, json_excerpt(value)));
  return number;
}
Bytes bytes_from(const Json& object, const std::string& field) {
  return {whole_number(object, field, largest_size)};
}
int count_from(const Json& object, const std::string& field) {
  return static_cast<int>(whole_number(object, field, std::numeric_limits<int>::max()));
}

CategoryBytes categories_from(const Json& object) {
  CategoryBytes bytes;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    bytes[category] = bytes_from(object, std::string(name(category)));
  }
  return bytes;
}

Row row_from(const Json& object) {
  Row row{object.at("name"), object.at("techniques")};
  if (!object.contains("step_ms")) return row;  // to be tried again
  row.planned.peak = bytes_from(object, "planned_peak_bytes");
  row.planned.arena = bytes_from(object, "planned_arena_bytes");
  row.planned.at_peak = categories_from(object.at("planned_by_category"));
  row.planned.predicted_ms = object.at("predicted_step_ms");
  row.planned.overhead = object.at("overhead");
  row.planned.plan_ms = object.at("plan_ms");
  row.planned.instructions = count_from(object, "instructions");
  row.planned.recomputed = count_from(object, "recomputed_nodes");
  if (object.contains("budget_bytes")) row.planned.budget = bytes_from(object, "budget_bytes");
  row.measured.total = bytes_from(object, "measured_peak_bytes");
  row.measured.staying = categories_from(object.at("measured_staying_by_category"));
  row.run_ms = object.at("step_ms").at("runs").get<std::vector<double>>();
  for (const Json& loss : object.at("losses"))  // JSON has no other numbers than finite ones
    row.losses.push_back(loss.is_null() ? std::nan("") : loss.get<double>());
  return row;
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
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", path.string(), error.what()));
  }
  return rows;
}

}  // namespace ebb::cli
