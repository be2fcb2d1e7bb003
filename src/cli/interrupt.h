// Handles Ctrl-C as a request. While it exists, the first SIGINT, SIGTERM or SIGUSR1 only sets a
// flag, so that work can end at a good place and keep its results; on a terminal, Ctrl-C also
// prints a line that says so. A second signal ends the process at once. Slurm announces the end of
// a job's time by SIGUSR1 (sbatch --signal=USR1@60).
#pragma once

namespace ebb::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const { return signal() != 0; }
  int signal() const;  // the signal that came, or 0
};

}  // namespace ebb::cli
