// A study's results as tables: CSV, Markdown, and text for a terminal.
#include <fmt/core.h>

#include <cmath>

#include "cli/ablate/results.h"

namespace ebb::cli {
namespace {

double mib(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }

// Three significant digits or all before the point: 0.0312, 4.57, 123, 10240.
std::string short_number(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value,
                     size == 0.0     ? 0
                     : size >= 100.0 ? 0
                     : size >= 10.0  ? 1
                     : size >= 1.0   ? 2
                                     : 3);
}

std::string mib_text(Bytes bytes) { return short_number(mib(bytes)); }

std::string time_text(double ms) { return short_number(ms); }

// How far runs are apart, as a share of their median.
std::string spread_text(const Row& row) {
  if (row.run_ms.size() < 2) return "";
  return fmt::format("±{:.0f}%", 50.0 * (row.high_ms() - row.low_ms()) / row.median_ms());
}

struct Ratios {
  std::string memory = "", time = "";
};
Ratios ratios_of(const Row& row, const Row* baseline) {
  if (!baseline) return {};
  return {fmt::format("{:.2f}", static_cast<double>(row.planned.peak.count) /
                                    static_cast<double>(baseline->planned.peak.count)),
          fmt::format("{:.2f}", row.median_ms() / baseline->median_ms())};
}

// Whether the row gave another row's losses to the bit, where that could have been otherwise.
bool same_bits(const Row& row, const Row* baseline) {
  return baseline && &row != baseline && tell_of_training(baseline->losses) &&
         same_losses(row.losses, baseline->losses);
}

std::string title(const Row& row) {
  std::string text;
  for (const char c : row.name) text += c == '+' ? std::string(" + ") : std::string(1, c);
  return text;
}

// With what it trains, where that is a choice of its own.
std::string workload_name(const Json& settings) {
  std::string text = settings.value("workload", "");
  if (settings.contains("classifier"))
    text += fmt::format(" of {}", settings.value("classifier", ""));
  return text;
}

std::string caption(const Results& results) {
  const Json &s = results.settings, &f = results.facts;
  return fmt::format("{}, {} parameters, batch {}, {} steps ({} samples), on {}", workload_name(s),
                     s.value("parameters", std::int64_t{}), s.value("batch", std::int64_t{}),
                     s.value("steps", std::int64_t{}), s.value("samples", std::int64_t{}),
                     f.value("device", ""));
}

// Columns that any row uses.
std::vector<Category> used_categories(const Results& results) {
  std::vector<Category> used;
  for (int c = 0; c < category_count; ++c)
    for (const Row& row : results.rows)
      if (row.planned.at_peak[static_cast<Category>(c)] > 0_B) {
        used.push_back(static_cast<Category>(c));
        break;
      }
  return used;
}

}  // namespace

std::string to_csv(const Results& results) {
  std::string text =
      "row,planned_peak_bytes,measured_peak_bytes,memory_ratio,step_ms,step_ms_low,step_ms_high,"
      "time_ratio,loss,runs,recomputed_nodes";
  for (int c = 0; c < category_count; ++c)
    text += fmt::format(",{}_bytes", name(static_cast<Category>(c)));
  text += ",arena_bytes,error\n";
  for (const Row& row : results.rows) {
    if (row.error && !row.done()) {
      std::string reason = *row.error;
      for (char& c : reason)
        if (c == '"' || c == '\n') c = '\'';
      text += fmt::format("{}{:,>{}}\"{}\"\n", row.name, "", 12 + category_count, reason);
    }
    if (!row.done()) continue;
    const Ratios ratios = ratios_of(row, results.baseline());
    text += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g},{},{:.9g},{},{}", row.name,
                        row.planned.peak.count, row.measured.total.count, ratios.memory,
                        row.median_ms(), row.low_ms(), row.high_ms(), ratios.time, row.loss(),
                        row.run_ms.size(), row.planned.recomputed);
    for (const Bytes& bytes : row.planned.at_peak.values) text += fmt::format(",{}", bytes.count);
    text += fmt::format(",{},\n", row.planned.arena.count);
  }
  return text;
}

std::string to_markdown(const Results& results) {
  const std::vector<Category> categories = used_categories(results);
  std::string text = fmt::format(
      "# Ablation: {}\n\n{}; {}; ebb {}.\n\n    {}\n\n"
      "Memory in MiB: `planned` is told before the first step, `measured` is what the system holds "
      "after the last.\nTime is the median over runs that took turns, with half the distance "
      "between the fastest and the slowest. The loss is the mean over\nthe last quarter of the "
      "steps; every row saw the same samples. `=`: the same losses as the baseline, to the "
      "bit (from three steps on).\n\n",
      workload_name(results.settings), caption(results), results.facts.value("date", ""),
      results.facts.value("version", ""), results.facts.value("command", ""));
  text +=
      "| row | planned | measured | memory | ms a step | time | loss | |\n"
      "|---|---:|---:|---:|---:|---:|---:|---|\n";
  for (const Row& row : results.rows) {
    if (!row.done()) {
      if (row.error) text += fmt::format("| {} | {} |\n", title(row), *row.error);
      continue;
    }
    const Ratios ratios = ratios_of(row, results.baseline());
    const bool same = same_bits(row, results.baseline());
    text += fmt::format("| {} | {} | {} | {} | {} {} | {} | {:.4f} | {} |\n", title(row),
                        mib_text(row.planned.peak), mib_text(row.measured.total), ratios.memory,
                        time_text(row.median_ms()), spread_text(row), ratios.time, row.loss(),
                        same ? "=" : "");
  }
  text += "\nAt the peak, by category, in MiB:\n\n| row |";
  for (Category c : categories) text += fmt::format(" {} |", name(c));
  text += "\n|---|";
  for (std::size_t i = 0; i < categories.size(); ++i) text += "---:|";
  text += "\n";
  for (const Row& row : results.rows) {
    if (!row.done()) continue;
    text += fmt::format("| {} |", title(row));
    for (Category c : categories) text += fmt::format(" {} |", mib_text(row.planned.at_peak[c]));
    text += "\n";
  }
  return text;
}

std::string to_table(const Results& results) {
  std::string text = caption(results) + "\n\n";
  text += fmt::format("{:<26}{:>12}{:>12}{:>8}{:>10}{:>6}{:>8}{:>10}\n", "", "planned MiB",
                      "measured", "memory", "ms/step", "", "time", "loss");
  for (const Row& row : results.rows) {
    if (!row.done()) {
      if (row.error) text += fmt::format("{:<26}  {}\n", row.name, *row.error);
      continue;
    }
    const Ratios ratios = ratios_of(row, results.baseline());
    const bool same = same_bits(row, results.baseline());
    text += fmt::format("{:<26}{:>12}{:>12}{:>8}{:>10}{:>6}{:>8}{:>10.4f}{}\n", row.name,
                        mib_text(row.planned.peak), mib_text(row.measured.total), ratios.memory,
                        time_text(row.median_ms()), spread_text(row), ratios.time, row.loss(),
                        same ? " =" : "");
  }
  text += fmt::format("\n{:<26}", "MiB at the peak");
  const std::vector<Category> categories = used_categories(results);
  for (Category c : categories) text += fmt::format("{:>12}", name(c));
  text += "\n";
  for (const Row& row : results.rows) {
    if (!row.done()) continue;
    text += fmt::format("{:<26}", row.name);
    for (Category c : categories) text += fmt::format("{:>12}", mib_text(row.planned.at_peak[c]));
    text += "\n";
  }
  return text;
}

}  // namespace ebb::cli
