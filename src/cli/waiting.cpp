#include "cli/waiting.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

void put(std::string_view text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

// Ends the drawn line, and then the process by the same signal, whose handler was restored to the
// default before this was called.
void interrupted(int signal) {
  constexpr std::string_view text =
      "\r\x1b[Kebb: interrupted before the first step; nothing was written\n";
  put(text);
  raise(signal);
}

}  // namespace

struct Waiting::State {
  std::string what, detail;
  Clock::time_point begin = Clock::now();
  bool over = false, drawn = false;
  std::mutex mutex;
  std::condition_variable ended;
  struct sigaction before = {};
  CtrlC ctrl_c = CtrlC::ends_the_process;
  std::thread thread;

  void draw() {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count();
    put(fmt::format("\r\x1b[K{}{}{}: {} s (Ctrl-C ends it)", what, detail.empty() ? "" : ", ",
                    detail, seconds));
    drawn = true;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, std::chrono::seconds(1), [&] { return over; })) draw();
    if (drawn) put("\r\x1b[K");
  }
};

Waiting::Waiting(std::string what, CtrlC ctrl_c) {
  const char* kind = std::getenv("TERM");
  if (isatty(STDERR_FILENO) != 1 || (kind && std::string_view(kind) == "dumb")) return;
  state_ = std::make_unique<State>();
  state_->what = std::move(what);
  state_->ctrl_c = ctrl_c;
  if (ctrl_c == CtrlC::ends_the_process) {
    struct sigaction action = {};
    action.sa_handler = interrupted;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    sigaction(SIGINT, &action, &state_->before);
  }
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Waiting::~Waiting() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->over = true;
  }
  state_->ended.notify_one();
  state_->thread.join();
  if (state_->ctrl_c == CtrlC::ends_the_process) sigaction(SIGINT, &state_->before, nullptr);
}

void Waiting::say(std::string detail) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->detail = std::move(detail);
}

void Waiting::say_points(int made, int of) {
  say(fmt::format("the curve, {} of {} budgets", made, of));
}

}  // namespace ebb::cli
