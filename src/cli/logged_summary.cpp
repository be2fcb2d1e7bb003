#include "cli/logged_summary.h"

#include <fmt/core.h>

#include "core/json.h"
#include "data/file.h"
#include "ebb/error.h"

namespace ebb::cli {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Values = std::vector<report::LoggedValue>;

const Values* LoggedSummary::find(const std::string& tag) const {
  const auto found = log.find(tag);
  return found == log.end() || found->second.empty() ? nullptr : &found->second;
}

const Values* LoggedSummary::losses() const {
  if (const Values* own = find("loss")) return own;
  return find(lowest_level + "/loss");
}

const Values* LoggedSummary::rates() const {
  if (const Values* own = find("rate")) return own;
  return find(lowest_level + "/rate");
}

LoggedSummary read_summary(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw FileError(
        fmt::format("{}: a folder that ebb train --log has written is expected", folder.string()));
  const fs::path log = folder / "log.jsonl", facts = folder / "run.json";
  if (!fs::exists(log, error))
    throw FileError(
        fmt::format("{}: expected log.jsonl, which ebb train --log writes", folder.string()));
  LoggedSummary summary;
  summary.name = folder.lexically_normal().string();
  if (summary.name.size() > 1 && summary.name.back() == '/') summary.name.pop_back();
  std::string begun;
  summary.log = report::read_json_lines(log, &begun);
  summary.fields = Json::object();
  if (!fs::exists(facts, error)) return summary;
  constexpr std::int64_t most = std::int64_t{1} << 30;  // bytes
  try {
    summary.fields = parse_ordered_json(data::File(facts).text(most));
  } catch (const ValueError& problem) {
    throw FileError(fmt::format("{}: {}", facts.string(), problem.what()));
  }
  if (!summary.fields.is_object())
    throw FileError(fmt::format("{}: the fields of a run are expected", facts.string()));
  // Removes the results of an earlier run in the same folder.
  if (const auto run = summary.fields.find("log"); run != summary.fields.end() && *run != begun)
    summary.fields = Json::object();
  return summary;
}

}  // namespace ebb::cli
