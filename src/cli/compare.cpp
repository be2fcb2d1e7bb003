// `ebb compare`: several runs side by side, from the folders that `ebb train --log` wrote.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/measure.h"
#include "cli/options.h"
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

// A figure of a run, or null where the run does not tell it.
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

std::string shown(const Json& value, Figure::Form form) {
  if (value.is_null()) return "–";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return json_text(value);
  const double number = value.get<double>();
  switch (form) {
    case Figure::Form::bytes:
      return number >= 0.0 && number < 9e18 ? to_string(Bytes{static_cast<std::int64_t>(number)})
                                            : json_text(value);
    case Figure::Form::share:
      return fmt::format("{:.2f}%", 100.0 * number);
    case Figure::Form::ms:
      return fmt::format("{:.2f}", number);
    default:
      return value.is_number_integer() ? value.dump() : fmt::format("{:.6g}", number);
  }
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
    add_option(app, "--page", page_, "Also write a page with the curves over each other")
        .type_name("FILE");
  }

  int run() override {
    std::vector<LoggedSummary> runs;
    for (const auto& folder : folders_) runs.push_back(read_summary(folder));
    if (page_) write_file(*page_, summary_page("ebb: runs side by side", runs));
    if (json()) {
      Json all = Json::array();
      for (const LoggedSummary& run : runs) {
        Json one{{"run", run.name}, {"over", !run.fields.empty()}};
        for (const Figure& figure : figures()) one[figure.key] = figure.of(run);
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
  SummaryRows rows;
  for (const Figure& figure : figures()) {
    std::vector<std::string> cells;
    bool any = false;
    for (const LoggedSummary& run : runs) {
      const Json value = figure.of(run);
      any = any || !value.is_null();
      cells.push_back(shown(value, figure.form));
    }
    if (any) rows.emplace_back(figure.name, std::move(cells));
  }
  return rows;
}

std::unique_ptr<Verb> compare_verb() { return std::make_unique<Compare>(); }

}  // namespace ebb::cli
