#include "ebb/report/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "ebb/error.h"
#include "report/progress_line.h"

namespace ebb::report {
namespace {

using std::chrono::duration;

constexpr auto between_redraws = std::chrono::milliseconds(100);
constexpr auto between_lines = std::chrono::minutes(1);
constexpr std::string_view erase_to_end = "\x1b[K";

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The locale's variables in order of precedence; the C library would need setlocale, which only the
// program may call.
bool terminal_shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(environment(name));
    if (value.empty()) continue;
    for (char& c : value) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return value.find("utf-8") != value.npos || value.find("utf8") != value.npos;
  }
  return false;
}

int terminal_width(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double seconds(Progress::Clock::duration time) {
  return std::max(0.0, duration<double>(time).count());
}

}  // namespace

Progress::Progress(std::int64_t total, ProgressOptions options, Clock::time_point now)
    : total_(total),
      options_(std::move(options)),
      terminal_(isatty(options_.descriptor) == 1 && environment("TERM") != "dumb"),
      unicode_(terminal_shows_unicode()),
      start_(now) {
  if (total < 0)
    throw ValueError(
        fmt::format("Progress: the number of steps must not be negative, but is {}", total));
}

Progress::~Progress() { finish(); }

void Progress::update(std::int64_t step, double loss, Bytes memory, Clock::time_point now) {
  if (finished_) return;
  if (!started_ || step < step_) {
    recent_seconds_ = recent_steps_ = 0.0;
    updated_ = now;
  } else if (step > step_) {
    const double time = seconds(now - updated_), steps = static_cast<double>(step - step_);
    const double kept = std::exp(-std::min(time / 10.0, steps / 10.0));
    recent_seconds_ = kept * recent_seconds_ + time;
    recent_steps_ = kept * recent_steps_ + steps;
    updated_ = now;
  }
  step_ = step, loss_ = loss, memory_ = memory;
  if (due(now)) draw(now);
  started_ = true;
}

bool Progress::due(Clock::time_point now) const {
  if (!started_ || at_end()) return true;
  if (terminal_) return now - drawn_ >= between_redraws;
  const auto tenth = [&](std::int64_t step) {
    return total_ > 0
               ? static_cast<int>(10.0 * static_cast<double>(step) / static_cast<double>(total_))
               : 0;
  };
  return tenth(step_) != tenth(drawn_step_) || now - drawn_ >= between_lines;
}

void Progress::draw(Clock::time_point now) {
  ProgressState state{options_.label, step_, total_, loss_, memory_, {}, {}, {}, rate_, test_loss_};
  if (recent_steps_ > 0.0) state.seconds_a_step = recent_seconds_ / recent_steps_;
  if (finished_ || at_end()) {
    state.seconds_in_all = seconds(now - start_);
  } else if (state.seconds_a_step && step_ < total_) {
    state.seconds_left = *state.seconds_a_step * static_cast<double>(total_ - step_);
  }
  text_.clear();
  if (terminal_) {
    // The cursor stays visible and lines still wrap, so a run that is killed leaves nothing to
    // restore. The last column stays free: terminals differ in where the cursor is after it.
    text_ += '\r';
    append_bar_line(text_, state, {terminal_width(options_.descriptor) - 1, unicode_});
    text_ += erase_to_end;
  } else {
    append_plain_line(text_, state);
    text_ += '\n';
  }
  write(text_);
  drawn_ = now, drawn_step_ = step_;
}

void Progress::print(std::string_view line) {
  std::string text;
  if (terminal_) text.append("\r").append(erase_to_end);
  text.append(line).append("\n");
  if (terminal_) text += text_;
  write(text);
}

void Progress::finish(Clock::time_point now) {
  if (finished_) return;
  finished_ = true;
  if (!started_) return;
  // The last step's line has been printed already.
  if (!at_end() || drawn_step_ != step_) draw(now);
  if (terminal_) write("\n");
  text_.clear();
}

void Progress::write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::write(options_.descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace ebb::report
