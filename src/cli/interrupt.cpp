#include "cli/interrupt.h"

namespace ebb::cli {
namespace {

// Signal handlers can reach nothing but globals.
volatile std::sig_atomic_t signalled = 0;

void note(int signal) { signalled = signal; }

}  // namespace

Interrupt::Interrupt() {
  signalled = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

int Interrupt::signal() const { return signalled; }

}  // namespace ebb::cli
