#include "cli/interrupt.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <string_view>

namespace ebb::cli {
namespace {

// Signal handlers can reach nothing but globals.
volatile std::sig_atomic_t signalled = 0;

volatile std::sig_atomic_t on_terminal = 0;

void note(int signal) {
  signalled = signal;
  if (signal != SIGINT || !on_terminal) return;
  // A step may take long: without a word, Ctrl-C would seem to do nothing.
  constexpr std::string_view text =
      "\r\x1b[Kebb: ending after this step; Ctrl-C again ends at once\n";
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

constexpr std::array signals{SIGINT, SIGTERM, SIGUSR1};

// Handlers are of the process, and ranks that are threads of it each have an Interrupt: the first
// one sets them, and the last one puts the old ones back.
std::mutex mutex;
int alive = 0;
std::array<struct sigaction, signals.size()> old_actions = {};

}  // namespace

Interrupt::Interrupt() {
  const std::lock_guard lock(mutex);
  if (alive++ > 0) return;
  signalled = 0;
  on_terminal = isatty(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &old_actions[i]);
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--alive > 0) return;
  for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &old_actions[i], nullptr);
}

int Interrupt::signal() const { return signalled; }

}  // namespace ebb::cli
