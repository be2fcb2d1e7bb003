// The page of one run or several: drawings in SVG and a table, with its style inside.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/run_summary.h"
#include "ebb/bytes.h"

namespace ebb::cli {
namespace {

using Values = std::vector<report::LoggedValue>;

constexpr std::string_view style = R"(
:root { --page: #ffffff; --raised: #f5f6f8; --text: #1b2029; --quiet: #5a6371; --line: #dde1e7; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --page: #13161b; --raised: #1c2027; --text: #e6e9ee; --quiet: #9ba5b3; --line: #2b313a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1000px; padding: 16px 20px 48px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 24px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 28px 0 4px; }
p { color: var(--quiet); margin: 0 0 8px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; } th { text-align: left; font-weight: 500; }
td, th { padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { text-align: right; white-space: nowrap; } thead th { color: var(--quiet); }
svg { width: 100%; height: auto; min-width: 560px; background: var(--raised); border-radius: 8px; }
svg text { fill: var(--quiet); font-size: 12px; } .grid { stroke: var(--line); }
.curve { fill: none; stroke-width: 1.6; } .test { stroke-dasharray: 5 3; }
.key { display: inline-block; margin-right: 18px; } .swatch { display: inline-block; width: 18px; border-top: 3px solid; margin-right: 6px; vertical-align: middle; }
)";

// Okabe and Ito's colours, those that are seen on white and on black.
constexpr std::array<std::string_view, 6> colours{"#0072b2", "#d55e00", "#009e73",
                                                  "#cc79a7", "#b8860b", "#56b4e9"};
std::string_view colour(std::size_t run) { return colours[run % colours.size()]; }

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  return result;
}

struct Curve {
  const Values* values;
  std::size_t run;
  bool of_test;
};

// At most `most` points, each the mean of the finite values of as many steps.
Values thinned(const Values& values, std::size_t most = 400) {
  const std::size_t each = (values.size() + most - 1) / most;
  Values points;
  for (std::size_t begin = 0; begin < values.size(); begin += each) {
    const std::size_t end = std::min(values.size(), begin + each);
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i)
      if (std::isfinite(values[i].value)) sum += values[i].value, ++count;
    if (count > 0) points.push_back({values[end - 1].step, sum / static_cast<double>(count)});
  }
  return points;
}

// A step between ticks of 1, 2 or 5 times a power of ten.
double tick_step(double range) {
  const double rough = range / 4.0, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10.0 * power;
}

std::string chart(const std::string& title, const std::string& about,
                  const std::vector<Curve>& curves) {
  std::vector<Values> all;
  double low = INFINITY, high = -INFINITY, first = INFINITY, last = -INFINITY;
  for (const Curve& curve : curves) {
    all.push_back(thinned(*curve.values));
    for (const report::LoggedValue& p : all.back()) {
      low = std::min(low, p.value), high = std::max(high, p.value);
      first = std::min(first, static_cast<double>(p.step));
      last = std::max(last, static_cast<double>(p.step));
    }
  }
  if (low > high) return {};  // nothing is finite
  if (high - low < 1e-12 * std::max(1.0, std::abs(high)))
    low -= std::max(std::abs(low) * 0.1, 1e-12), high += std::max(std::abs(high) * 0.1, 1e-12);
  const double margin = 0.04 * (high - low);
  low = low >= 0.0 ? std::max(0.0, low - margin) : low - margin, high += margin;
  if (last <= first) last = first + 1.0;
  constexpr double left = 64, right = 944, top = 12, bottom = 230;
  const auto x = [&](double step) {
    return left + (right - left) * (step - first) / (last - first);
  };
  const auto y = [&](double value) {
    return bottom - (bottom - top) * (value - low) / (high - low);
  };
  std::string svg = fmt::format(
      "<h2>{}</h2>\n<p>{}</p>\n<div class=\"scroll\"><svg viewBox=\"0 0 960 262\" role=\"img\" "
      "aria-label=\"{}\">\n",
      title, about, title);
  const double up = tick_step(high - low), along = std::max(1.0, tick_step(last - first));
  for (double v = std::ceil(low / up) * up; v <= high; v += up)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text x=\"{}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n",
        left, right, y(v), y(v), left - 6, y(v) + 4, std::abs(v) < 1e-9 * up ? 0.0 : v);
  for (double s = std::ceil(first / along) * along; s <= last; s += along)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", x(s),
                       bottom + 18, s);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string points;
    for (const report::LoggedValue& p : all[i])
      points += fmt::format("{:.1f},{:.1f} ", x(static_cast<double>(p.step)), y(p.value));
    svg += fmt::format("<polyline class=\"curve{}\" stroke=\"{}\" points=\"{}\"/>\n",
                       curves[i].of_test ? " test" : "", colour(curves[i].run), points);
    if (all[i].size() == 1)
      svg += fmt::format("<circle r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\" fill=\"{}\"/>\n",
                         x(static_cast<double>(all[i][0].step)), y(all[i][0].value),
                         colour(curves[i].run));
  }
  return svg + "</svg></div>\n";
}

std::vector<Curve> curves_of(const std::vector<LoggedSummary>& runs, const std::string& tag) {
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (const Values* values = tag == "loss" ? runs[i].losses() : runs[i].find(tag))
      curves.push_back({values, i, tag == "test_loss"});
  return curves;
}

// The curves of each rank of a run, as `log_pulses` names them.
std::vector<Curve> curves_of_ranks(const LoggedSummary& run, const std::string& what) {
  std::vector<Curve> curves;
  for (std::size_t r = 0;; ++r) {
    const Values* values = run.find(fmt::format("ranks/{}/{}", r, what));
    if (!values) return curves;
    curves.push_back({values, r, false});
  }
}

// What each rank told at the end, or nothing.
std::string table_of_ranks(const LoggedSummary& run) {
  const auto ranks = run.fields.find("per_rank");
  if (ranks == run.fields.end() || !ranks->is_array()) return {};
  std::string table =
      "<h2>Ranks</h2>\n<p>The rank that waits least is the one that the others wait for.</p>\n"
      "<div class=\"scroll\"><table><thead><tr><th>rank</th><th>planned peak</th><th>measured peak"
      "</th><th>ms a step</th><th>ms of it in exchanges</th><th>sent a step</th></tr></thead>"
      "<tbody>\n";
  for (const auto& rank : *ranks) {
    const auto number = [&](const char* field) {
      const auto found = rank.is_object() ? rank.find(field) : rank.end();
      return found != rank.end() && found->is_number() ? found->get<double>() : 0.0;
    };
    const auto bytes = [&](const char* field) {
      return to_string(Bytes{static_cast<std::int64_t>(number(field))});
    };
    table += fmt::format(
        "<tr><th scope=\"row\">{:.0f}</th><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td>"
        "<td>{}</td></tr>\n",
        number("rank"), bytes("planned_peak_bytes"), bytes("measured_peak_bytes"),
        number("step_ms"), number("waited_ms"), bytes("bytes_sent"));
  }
  return table + "</tbody></table></div>\n";
}

}  // namespace

std::string summary_page(const std::string& title, const std::vector<LoggedSummary>& runs) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{}</style></head>\n"
      "<body><h1>{}</h1>\n",
      escaped(title), style, escaped(title));
  for (const LoggedSummary& run : runs)
    if (const auto command = run.fields.find("command");
        command != run.fields.end() && command->is_string())
      page += fmt::format("<p>{}</p>\n", escaped(command->get<std::string>()));
  if (runs.size() > 1) {
    page += "<p>";
    for (std::size_t i = 0; i < runs.size(); ++i)
      page += fmt::format(
          "<span class=\"key\"><span class=\"swatch\" style=\"border-color: {}\"></span>{}</span>",
          colour(i), escaped(runs[i].name));
    page += "</p>\n";
  }
  std::vector<Curve> losses = curves_of(runs, "loss");
  const std::vector<Curve> tests = curves_of(runs, "test_loss");
  losses.insert(losses.end(), tests.begin(), tests.end());
  page += chart("Loss",
                tests.empty() ? "Of training, by step." : "Of training, and of tests as dashes.",
                losses);
  page += chart("Accuracy", "The share of right answers in tests, by step.",
                curves_of(runs, "test_accuracy"));
  page += chart("Learning rate", "By step.", curves_of(runs, "rate"));
  page += chart("Time of a step", "In milliseconds, without waiting for data.",
                curves_of(runs, "step_ms"));
  if (runs.size() == 1) {
    page += chart("Time in exchanges, by rank",
                  "In milliseconds a step, a curve for each rank. The lowest is that of the rank "
                  "that the others wait for.",
                  curves_of_ranks(runs.front(), "waited_ms"));
    page += table_of_ranks(runs.front());
  }
  page += "<h2>The run</h2>\n<div class=\"scroll\"><table><thead><tr><th></th>";
  for (const LoggedSummary& run : runs)
    page += fmt::format("<th scope=\"col\">{}</th>", escaped(run.name));
  page += "</tr></thead><tbody>\n";
  for (const auto& [name, cells] : summary_rows(runs)) {
    page += fmt::format("<tr><th scope=\"row\">{}</th>", escaped(name));
    for (const std::string& cell : cells) page += fmt::format("<td>{}</td>", escaped(cell));
    page += "</tr>\n";
  }
  return page + "</tbody></table></div></body></html>\n";
}

}  // namespace ebb::cli
