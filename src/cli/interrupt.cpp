#include "cli/interrupt.h"

namespace ebb::cli {
namespace {

// Signal handlers can reach nothing but globals.
volatile std::sig_atomic_t signalled = 0;

void note(int) { signalled = 1; }

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

bool Interrupt::asked() const { return signalled != 0; }

}  // namespace ebb::cli
