// The page of one or several runs, in the form that src/report/page/runs_data.js expects.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/run_summary.h"
#include "core/json.h"
#include "report/runs_page.h"

namespace ebb::cli {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<report::LoggedValue>;

// The time in seconds of all steps up to each timed one.
struct StepTimes {
  std::vector<std::pair<std::int64_t, double>> ends;  // step and seconds, both rising

  explicit StepTimes(const Values* times) {
    double seconds = 0.0;
    if (!times) return;
    for (const report::LoggedValue& time : *times)
      if (std::isfinite(time.value)) ends.emplace_back(time.step, seconds += 1e-3 * time.value);
  }
  double until(std::int64_t step) const {
    const auto after =
        std::upper_bound(ends.begin(), ends.end(), step,
                         [](std::int64_t value, const auto& end) { return value < end.first; });
    return after == ends.begin() ? 0.0 : std::prev(after)->second;
  }
};

double rounded(double value, int digits) {
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

// At most 600 points, each the mean of the finite values of `each` steps.
Json curve(const Values& values, const StepTimes& times) {
  constexpr std::size_t most = 600;
  const std::size_t each = (values.size() + most - 1) / most;
  Json steps = Json::array(), means = Json::array(), seconds = Json::array();
  for (std::size_t begin = 0; begin < values.size(); begin += each) {
    const std::size_t end = std::min(values.size(), begin + each);
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i)
      if (std::isfinite(values[i].value)) sum += values[i].value, ++count;
    const double mean = sum / static_cast<double>(std::max<std::size_t>(count, 1));
    steps.push_back(values[end - 1].step);
    means.push_back(count > 0 && std::isfinite(mean) ? Json(rounded(mean, 9)) : Json());
    if (!times.ends.empty()) seconds.push_back(rounded(times.until(values[end - 1].step), 7));
  }
  Json result{{"each", each}, {"steps", std::move(steps)}, {"values", std::move(means)}};
  if (!seconds.empty()) result["seconds"] = std::move(seconds);
  return result;
}

const Json* number(const Json& fields, const char* name) {
  const auto found = fields.find(name);
  return found != fields.end() && found->is_number() ? &*found : nullptr;
}

// The figures that are shown first.
Json figures(const LoggedSummary& run) {
  Json all = Json::array();
  for (const auto& [name, cells] : summary_rows({run}))
    for (const char* wanted : {"last loss", "test loss", "test accuracy", "ms a step"})
      if (name == wanted) all.push_back({cells.front(), name});
  return all;
}

Json run_object(const LoggedSummary& run) {
  const Json& fields = run.fields;
  Json object{{"name", run.name}, {"over", !fields.empty()}};
  for (const char* text : {"command", "date", "version"})
    if (const auto found = fields.find(text); found != fields.end() && found->is_string())
      object[text] = *found;
  for (const char* bytes : {"planned_peak_bytes", "measured_peak_bytes", "budget_bytes"})
    if (const Json* value = number(fields, bytes)) object[bytes] = *value;
  if (const auto found = fields.find("peak_by_category");
      found != fields.end() && found->is_object())
    for (const auto& [name, bytes] : found->items())
      if (bytes.is_number()) object["peak_by_category"][name] = bytes;
  if (const auto found = fields.find("eval_accuracy_by_class");
      found != fields.end() && found->is_array()) {
    // In sets that ebb makes long-tailed, the rarest class is the last one; other sets are as they
    // are.
    const auto options = fields.find("options");
    object["by_frequency"] = options != fields.end() && options->is_object() &&
                             options->contains("imbalance") && (*options)["imbalance"].is_number();
    object["accuracy_by_class"] = Json::array();
    for (const Json& share : *found)
      object["accuracy_by_class"].push_back(share.is_number() ? share : Json());
  }
  object["figures"] = figures(run);
  object["curves"] = Json::object();
  const StepTimes times(run.find("step_ms"));
  for (const auto& [tag, values] : run.log)
    if (!values.empty()) object["curves"][tag] = curve(values, times);
  // The values of the lowest level represent the run.
  for (const auto& [name, values] :
       {std::pair{"loss", run.losses()}, std::pair{"rate", run.rates()}})
    if (values && !object["curves"].contains(name)) object["curves"][name] = curve(*values, times);
  object["curves"].erase(lowest_level + "/loss");
  return object;
}

}  // namespace

std::string summary_page(const std::string& title, const std::vector<LoggedSummary>& runs) {
  Json page{{"kind", "runs"}, {"title", title}, {"runs", Json::array()}, {"table", Json::array()}};
  for (const LoggedSummary& run : runs) page["runs"].push_back(run_object(run));
  // The page shows memory in a part of its own, in one unit.
  for (const auto& [name, cells] : summary_rows(runs))
    if (!name.starts_with("peak, ") && name != "budget") page["table"].push_back({name, cells});
  if (runs.size() == 1)
    if (const auto ranks = runs.front().fields.find("per_rank");
        ranks != runs.front().fields.end() && ranks->is_array()) {
      page["ranks"] = Json::array();
      for (const Json& rank : *ranks) {
        Json one;
        for (const char* name : {"rank", "planned_peak_bytes", "measured_peak_bytes", "step_ms",
                                 "waited_ms", "bytes_sent"})
          if (const Json* value = rank.is_object() ? number(rank, name) : nullptr)
            one[name] = *value;
        page["ranks"].push_back(std::move(one));
      }
    }
  return report::runs_page(title, json_text(page));
}

}  // namespace ebb::cli
