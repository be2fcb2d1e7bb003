#include "cli/interrupt.h"

#include <array>
#include <csignal>
#include <mutex>

namespace ebb::cli {
namespace {

// Signal handlers can reach nothing but globals.
volatile std::sig_atomic_t signalled = 0;

void note(int signal) { signalled = signal; }

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
