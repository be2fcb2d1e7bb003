// `ebb compare`: several runs side by side, from the folders that `ebb train --log` wrote.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/bytes_in_unit.h"
#include "cli/measure.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/page_data.h"
#include "cli/run_summary.h"
#include "cli/verb.h"
#include "core/json.h"
#include "core/utf8.h"
#include "ebb/bytes.h"

namespace ebb::cli {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<report::LoggedValue>;

// A figure of a run; null if the run does not have it.
struct Figure {
  const char *name, *key;
  Json (*of)(const LoggedSummary&);
  enum class Form : std::uint8_t { text, number, bytes, share, ms } form;
};

Json field(const LoggedSummary& run, const char* name) {
  const auto found = run.fields.find(name);
  return found == run.fields.end() ? Json() : *found;
}
Json number_field(const LoggedSummary& run, const char* name) {
  const Json value = field(run, name);
  return value.is_number() ? value : Json();
}
Json last_of(const Values* values) { return values ? Json(values->back().value) : Json(); }
Json lowest_of(const Values* values) {
  if (!values) return {};
  const auto lowest =
      std::min_element(values->begin(), values->end(),
                       [](const auto& a, const auto& b) { return a.value < b.value; });
  return lowest->value;
}
Json steps_of(const LoggedSummary& run) {
  const Values* losses = run.losses();
  return losses ? Json(losses->back().step) : Json();
}
Json usual_time(const LoggedSummary& run) {
  const Values* values = run.find("step_ms");
  if (!values) return {};
  std::vector<double> times;
  for (const report::LoggedValue& v : *values) times.push_back(v.value);
  return median(times);
}
Json test_loss(const LoggedSummary& run) {
  const Json last = number_field(run, "eval_loss");
  return last.is_null() ? last_of(run.find("test_loss")) : last;
}
Json test_accuracy(const LoggedSummary& run) {
  const Json last = number_field(run, "eval_accuracy");
  return last.is_null() ? last_of(run.find("test_accuracy")) : last;
}

// A level that a run omits, as with --unweighted, has no optimizer.
bool trains(const Json& level) {
  const auto rule = level.is_object() ? level.find("optimizer.rule") : level.end();
  return rule != level.end() && rule->is_string() && !rule->get_ref<const std::string&>().empty();
}

// The options of a run as "lr" and "reweight.lr"; none if the run has not ended.
std::map<std::string, Json> options_of(const LoggedSummary& run) {
  std::map<std::string, Json> options;
  const Json all = field(run, "options");
  if (!all.is_object()) return options;
  for (const auto& [name, value] : all.items()) {
    if (name != "levels") {
      options[name] = value;
    } else if (value.is_object()) {
      for (const auto& [level, own] : value.items())
        if (trains(own))
          for (const auto& [inner, set] : own.items())
            options[fmt::format("{}.{}", level, inner)] = set;
    }
  }
  return options;
}

// The options in which finished runs differ, sorted by name. The rule of an optimizer and a budget
// follow from other options, and the log differs in every run.
std::vector<std::string> differing_options(const std::vector<LoggedSummary>& runs) {
  std::vector<std::map<std::string, Json>> all;
  for (const LoggedSummary& run : runs)
    if (auto options = options_of(run); !options.empty()) all.push_back(std::move(options));
  std::set<std::string> names;
  for (const auto& options : all)
    for (const auto& [name, value] : options)
      if (name != "log" && name != "budget" && !name.ends_with(".rule")) names.insert(name);
  std::vector<std::string> differing;
  const auto level_of = [](const std::string& name) { return name.substr(0, name.find('.') + 1); };
  for (const std::string& name : names) {
    // Runs that lack a level do not differ in its options.
    if (const std::string level = level_of(name);
        !level.empty() && !std::all_of(all.begin(), all.end(), [&](const auto& options) {
          const auto first = options.lower_bound(level);
          return first != options.end() && first->first.starts_with(level);
        }))
      continue;
    const auto value = [&](const std::map<std::string, Json>& options) {
      const auto found = options.find(name);
      return found == options.end() ? Json() : found->second;
    };
    if (std::any_of(all.begin(), all.end(),
                    [&](const auto& options) { return value(options) != value(all.front()); }))
      differing.push_back(name);
  }
  return differing;
}

Json option_of(const LoggedSummary& run, const std::string& name) {
  const std::map<std::string, Json> options = options_of(run);
  const auto found = options.find(name);
  return found == options.end() ? Json() : found->second;
}

// The accuracy of class c after the last step, or null.
Json class_accuracy(const LoggedSummary& run, std::size_t c) {
  const Json classes = field(run, "eval_accuracy_by_class");
  return classes.is_array() && c < classes.size() && classes[c].is_number() ? classes[c] : Json();
}

std::size_t classes_of(const std::vector<LoggedSummary>& runs) {
  std::size_t most = 0;
  for (const LoggedSummary& run : runs)
    if (const Json classes = field(run, "eval_accuracy_by_class"); classes.is_array())
      most = std::max(most, classes.size());
  return most;
}

const std::vector<Figure>& figures() {
  using Form = Figure::Form;
  using Run = const LoggedSummary&;
  static const std::vector<Figure> all{
      {"workload", "workload", [](Run r) { return field(r, "workload"); }, Form::text},
      {"device", "device", [](Run r) { return field(r, "device"); }, Form::text},
      {"precision", "precision", [](Run r) { return field(r, "precision"); }, Form::text},
      {"parameters", "params", [](Run r) { return number_field(r, "params"); }, Form::number},
      {"batch", "batch", [](Run r) { return number_field(r, "batch"); }, Form::number},
      {"steps", "steps", steps_of, Form::number},
      {"last loss", "loss", [](Run r) { return last_of(r.losses()); }, Form::number},
      {"test loss", "test_loss", test_loss, Form::number},
      {"lowest test loss", "best_test_loss", [](Run r) { return lowest_of(r.find("test_loss")); },
       Form::number},
      {"test accuracy", "test_accuracy", test_accuracy, Form::share},
      {"ms a step", "step_ms", usual_time, Form::ms},
      {"peak, planned", "planned_peak_bytes",
       [](Run r) { return number_field(r, "planned_peak_bytes"); }, Form::bytes},
      {"peak, measured", "measured_peak_bytes",
       [](Run r) { return number_field(r, "measured_peak_bytes"); }, Form::bytes},
      {"budget", "budget_bytes", [](Run r) { return number_field(r, "budget_bytes"); },
       Form::bytes},
  };
  return all;
}

// `most` is the largest number of bytes in the row; its unit is used.
std::string shown(const Json& value, Figure::Form form, double most) {
  if (value.is_null()) return "–";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_number()) return json_text(value);
  const double number = value.get<double>();
  switch (form) {
    case Figure::Form::bytes:
      return number >= 0.0 && most < 9e18 ? in_unit_of(Bytes{static_cast<std::int64_t>(most)},
                                                       Bytes{static_cast<std::int64_t>(number)})
                                          : json_text(value);
    case Figure::Form::share:
      return fmt::format("{:.2f}%", 100.0 * number);
    case Figure::Form::ms:
      return fmt::format("{:.2f}", number);
    default:
      return value.is_number_integer() ? value.dump() : fmt::format("{:.6g}", number);
  }
}

// Removes the leading folders that all runs share.
void shorten_names(std::vector<LoggedSummary>& runs) {
  const std::string& first = runs.front().name;
  std::size_t shared = first.rfind('/') == std::string::npos ? 0 : first.rfind('/') + 1;
  for (const LoggedSummary& run : runs) {
    while (shared > 0 && run.name.compare(0, shared, first, 0, shared) != 0) {
      const std::size_t before = shared < 2 ? std::string::npos : first.rfind('/', shared - 2);
      shared = before == std::string::npos ? 0 : before + 1;
    }
    if (run.name.size() <= shared) shared = 0;
  }
  if (runs.size() > 1)
    for (LoggedSummary& run : runs) run.name.erase(0, shared);
}

class Compare : public Verb {
 public:
  Compare()
      : Verb("compare", "Show several training runs side by side, from their log folders",
             "ebb compare run-a run-b --page compare.html") {}

 protected:
  void configure(CLI::App& app) override {
    add_option(app, "runs", folders_, "Folders that ebb train --log has written")
        .required()
        .existing_folder()
        .type_name("RUN");
    add_option(app, "--page", page_, "Also write a page with the curves of all runs in one chart")
        .type_name("FILE");
  }

  int run() override {
    std::vector<LoggedSummary> runs;
    if (page_)
      for (const auto& folder : folders_) refuse_over_input("--page", *page_, "RUN", folder);
    for (const auto& folder : folders_) runs.push_back(read_summary(folder));
    if (!json()) shorten_names(runs);
    if (page_) write_file(*page_, summary_page("ebb: Runs side by side", runs));
    if (json()) {
      Json all = Json::array();
      const std::vector<std::string> differing = differing_options(runs);
      for (const LoggedSummary& run : runs) {
        Json one{{"run", run.name}, {"over", !run.fields.empty()}};
        for (const Figure& figure : figures()) one[figure.key] = figure.of(run);
        if (const Json classes = field(run, "eval_accuracy_by_class"); classes.is_array())
          one["test_accuracy_by_class"] = classes;
        one["differing_options"] = Json::object();
        for (const std::string& name : differing)
          one["differing_options"][name] = option_of(run, name);
        all.push_back(std::move(one));
      }
      std::cout << json_text(all) << "\n";
      return success;
    }
    std::vector<std::string> header;
    for (const LoggedSummary& run : runs)
      header.push_back(run.fields.empty() ? run.name + " (not over)" : run.name);
    SummaryRows rows = summary_rows(runs);
    rows.insert(rows.begin(), {"", header});
    std::vector<std::size_t> widths(runs.size());
    std::size_t names = 0;
    for (const auto& [name, cells] : rows) {
      names = std::max(names, name.size());
      for (std::size_t i = 0; i < cells.size(); ++i)
        widths[i] = std::max(widths[i], cells[i].size());
    }
    for (const auto& [name, cells] : rows) {
      fmt::print("{:<{}}", name, names);
      for (std::size_t i = 0; i < cells.size(); ++i) fmt::print("  {:>{}}", cells[i], widths[i]);
      fmt::print("\n");
    }
    return success;
  }

 private:
  std::vector<std::filesystem::path> folders_;
  std::optional<std::filesystem::path> page_;
};

}  // namespace

SummaryRows summary_rows(const std::vector<LoggedSummary>& runs) {
  double most_bytes = 0.0;  // all bytes are shown in one unit
  for (const Figure& figure : figures())
    for (const LoggedSummary& run : runs)
      if (const Json value = figure.of(run);
          figure.form == Figure::Form::bytes && value.is_number())
        most_bytes = std::max(most_bytes, value.get<double>());
  SummaryRows rows;
  const auto add = [&](const std::string& name, Figure::Form form, const auto& of) {
    std::vector<std::string> cells;
    for (const LoggedSummary& run : runs) cells.push_back(shown(of(run), form, most_bytes));
    rows.emplace_back(name, std::move(cells));
  };
  for (const Figure& figure : figures())
    if (std::any_of(runs.begin(), runs.end(),
                    [&](const LoggedSummary& run) { return !figure.of(run).is_null(); }))
      add(figure.name, figure.form, figure.of);
  const std::size_t classes = classes_of(runs);
  for (std::size_t c = 0; c < classes; ++c)
    add(fmt::format("accuracy, class {}", c), Figure::Form::share,
        [&](const LoggedSummary& run) { return class_accuracy(run, c); });
  for (const std::string& name : differing_options(runs))
    add("--" + name, Figure::Form::text,
        [&](const LoggedSummary& run) { return option_of(run, name); });
  return rows;
}

std::unique_ptr<Verb> compare_verb() { return std::make_unique<Compare>(); }

}  // namespace ebb::cli
