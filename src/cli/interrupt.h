// Handles Ctrl-C as a request. While it exists, the first SIGINT, SIGTERM, SIGUSR1 or SIGHUP only
// sets a flag, so that work can end at a good place and keep its results; on a terminal, Ctrl-C
// also prints a line that says so. A second signal ends the process at once, except SIGHUP, which a
// closing terminal may send twice. Slurm announces the end of a job's time by SIGUSR1 (sbatch
// --signal=USR1@60).
#pragma once

#include <vector>

namespace ebb::cli {

// The signals that ask for an end. SIGHUP is not one of them if the program was started with it
// ignored (nohup). Shells ignore SIGINT for commands in the background, but it is one always.
std::vector<int> requests_to_end();

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
