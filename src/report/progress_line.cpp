#include "report/progress_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "report/utf8.h"

namespace ebb::report {
namespace {

double share_done(const ProgressState& state) {
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total), 0.0, 1.0);
}

std::string step_time_text(double seconds) {
  if (seconds >= 10.0) return fmt::format("{:.1f} s/step", seconds);
  const double ms = 1e3 * seconds;
  return fmt::format("{:.{}f} ms/step", ms, ms < 10.0 ? 2 : ms < 100.0 ? 1 : 0);
}

void append_step(std::string& text, const ProgressState& state) {
  // A label is one line of text, so characters that move the cursor are removed.
  for (std::string_view rest = state.label; !rest.empty();) {
    const CodePoint point = first_code_point(rest);
    rest.remove_prefix(point.length);
    const bool control = point.value < 0x20 || (point.value >= 0x7F && point.value < 0xA0);
    append_utf8(text, control ? U' ' : point.value);
  }
  if (!state.label.empty()) text += "  ";
  fmt::format_to(std::back_inserter(text), "step {}", state.step);
  if (state.total > 0) fmt::format_to(std::back_inserter(text), "/{}", state.total);
}

void append_figures(std::string& text, const ProgressState& state) {
  fmt::format_to(std::back_inserter(text), "loss {:#.5g}", state.loss);
  const auto add = [&](std::string_view before, std::string_view figure, std::string_view after) {
    text += before, text += figure, text += after;
  };
  if (state.test_loss) add("  test ", fmt::format("{:#.5g}", *state.test_loss), "");
  if (state.rate) add("  rate ", fmt::format("{:.3g}", *state.rate), "");
  if (state.seconds_a_step) add("  ", step_time_text(*state.seconds_a_step), "");
  if (state.memory > 0_B) add("  ", to_string(state.memory), "");
  if (state.seconds_left) add("  ", duration_text(*state.seconds_left), " left");
  if (state.seconds_in_all) add("  in ", duration_text(*state.seconds_in_all), "");
}

// `width` columns with their borders.
void append_bar(std::string& text, double share, int width, bool unicode) {
  constexpr std::array eighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int cells = width - 2;
  const int filled = static_cast<int>(share * 8.0 * cells);  // in eighths of a cell
  const int full = filled / 8;
  text += unicode ? "▕" : "[";
  for (int i = 0; i < full; ++i) text += unicode ? "█" : "#";
  const bool part = unicode && filled % 8 > 0;
  if (part) text += eighths[static_cast<std::size_t>(filled % 8)];
  for (int i = full + (part ? 1 : 0); i < cells; ++i) text += unicode ? " " : ".";
  text += unicode ? "▏" : "]";
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", std::max(seconds, 0.0));
  const long long whole = std::llround(std::min(seconds, 1e12));
  const long long minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (minutes == 0) return fmt::format("{} s", whole);
  if (hours == 0) return fmt::format("{} min {:02} s", minutes, whole % 60);
  if (days == 0) return fmt::format("{} h {:02} min", hours, minutes % 60);
  return fmt::format("{} d {:02} h", days, hours % 24);
}

void append_plain_line(std::string& text, const ProgressState& state) {
  append_step(text, state);
  if (state.total > 0)
    fmt::format_to(std::back_inserter(text), " ({}%)", static_cast<int>(100.0 * share_done(state)));
  text += "  ";
  append_figures(text, state);
}

void append_bar_line(std::string& text, const ProgressState& state, LineStyle style) {
  constexpr int widest = 32, narrowest = 8;
  std::string line, figures;
  append_step(line, state);
  append_figures(figures, state);
  const int room = std::min(widest, style.width - columns(line) - columns(figures) - 2);
  if (state.total > 0 && room >= narrowest) {
    line += ' ';
    append_bar(line, share_done(state), room, style.unicode);
    line += ' ';
  } else {
    line += "  ";
  }
  line += figures;
  cut_to_columns(line, style.width, style.unicode ? "…" : "...");
  text += line;
}

}  // namespace ebb::report
