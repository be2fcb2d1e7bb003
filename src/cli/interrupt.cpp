#include "cli/interrupt.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <string_view>

namespace ebb::cli {
namespace {

// Signal handlers can only access globals.
volatile std::sig_atomic_t signalled = 0;

volatile std::sig_atomic_t on_terminal = 0;

void note(int signal) {
  signalled = signal;
  if (signal != SIGINT || !on_terminal) return;
  // A step may take long: without a message, Ctrl-C would seem to have no effect.
  constexpr std::string_view text =
      "\r\x1b[Kebb: ending after this step; Ctrl-C again ends at once\n";
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

constexpr std::array signals{SIGINT, SIGTERM, SIGUSR1};

// Handlers belong to the process, and each rank that is a thread of it has its own Interrupt: the
// first one sets the handlers, and the last one restores the old ones.
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
