#include "cli/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <string_view>
#include <utility>

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

// Handlers belong to the process, and each rank that is a thread of it has its own Interrupt: the
// first one sets the handlers, and the last one restores the old ones.
std::mutex mutex;
int alive = 0;
std::vector<std::pair<int, struct sigaction>> old_actions;  // by signal

}  // namespace

std::vector<int> requests_to_end() {
  std::vector<int> signals{SIGINT, SIGTERM, SIGUSR1};
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) signals.push_back(SIGHUP);
  return signals;
}

Interrupt::Interrupt() {
  const std::lock_guard lock(mutex);
  if (alive++ > 0) return;
  signalled = 0;
  on_terminal = isatty(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = note;
  for (const int signal : requests_to_end()) {
    action.sa_flags = signal == SIGHUP ? SA_RESTART : static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(signal, &action, &old_actions.emplace_back(signal, action).second);
  }
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--alive > 0) return;
  for (const auto& [signal, action] : old_actions) sigaction(signal, &action, nullptr);
  old_actions.clear();
}

int Interrupt::signal() const { return signalled; }

}  // namespace ebb::cli
