#include "ebb/report/log_reader.h"

#include <fmt/core.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "data/file.h"

namespace ebb::report {
namespace {

double number_of(const nlohmann::json& record, const std::string& place) {
  const auto value = record.find("value");
  if (value == record.end())
    throw FileError(fmt::format("{}: a record has \"value\" or \"text\"", place));
  if (value->is_number()) return value->get<double>();
  const auto note = record.find("note");
  if (value->is_null() && note != record.end() && note->is_string()) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto& text = note->get_ref<const std::string&>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return infinity;
    if (text == "-inf") return -infinity;
  }
  throw FileError(
      fmt::format("{}: \"value\" must be a number, but is {}", place, json_excerpt(*value)));
}

}  // namespace

LoggedRun read_json_lines(const std::filesystem::path& path, std::string* begun) {
  constexpr std::int64_t most = std::int64_t{1} << 31;  // bytes
  const std::string text = data::File(path).text(most);
  std::map<std::string, std::map<std::int64_t, double>> values;
  if (begun) begun->clear();
  std::int64_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string_view one(text.data() + at, end - at);
    at = end + 1;
    const std::string place = fmt::format("{}: line {}", path.string(), ++line);
    nlohmann::json record;
    try {
      record = parse_json(one);
    } catch (const ValueError& error) {
      throw FileError(fmt::format("{}: {}", place, error.what()));
    }
    const auto field = [&](const char* name) -> const nlohmann::json& {
      const auto found = record.is_object() ? record.find(name) : record.end();
      if (found == record.end())
        throw FileError(fmt::format("{}: a record has \"step\" and \"tag\", but there is no \"{}\"",
                                    place, name));
      return *found;
    };
    const nlohmann::json &step = field("step"), &tag = field("tag");
    if (!step.is_number_integer() ||
        (step.is_number_unsigned() && step.get<std::uint64_t>() > std::uint64_t{1} << 62))
      throw FileError(
          fmt::format("{}: \"step\" must be a number, but is {}", place, json_excerpt(step)));
    if (!tag.is_string())
      throw FileError(
          fmt::format("{}: \"tag\" must be a string, but is {}", place, json_excerpt(tag)));
    if (const auto words = record.find("text"); words != record.end()) {
      if (tag != begin_tag) continue;
      for (auto& [name, steps] : values)
        steps.erase(steps.upper_bound(step.get<std::int64_t>()), steps.end());
      if (begun) *begun = words->is_string() ? words->get<std::string>() : "";
      continue;
    }
    values[tag.get<std::string>()][step.get<std::int64_t>()] = number_of(record, place);
  }
  LoggedRun run;
  for (const auto& [tag, steps] : values)
    for (const auto& [step, value] : steps) run[tag].push_back({step, value});
  return run;
}

}  // namespace ebb::report
