// Ctrl-C as a request: while it lives, the first SIGINT or SIGTERM only sets a flag, so that work
// can end at a good place and keep what is done. A second one ends the process at once.
#pragma once

#include <csignal>

namespace ebb::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const { return signal() != 0; }
  int signal() const;  // the one that came, or 0

 private:
  struct sigaction old_interrupt_ = {}, old_terminate_ = {};
};

}  // namespace ebb::cli
