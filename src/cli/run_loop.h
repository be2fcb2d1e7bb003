// The steps of a run: progress, checkpoints on the way, and every way in which a run can end early.
#pragma once

#include <chrono>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "cli/early_stopping.h"
#include "cli/trainee.h"

namespace ebb::cli {

// The time since it was made.
class Stopwatch {
 public:
  double ms() const;
  double processor_ms() const;  // of all threads of the process

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::clock_t processor_begin_ = std::clock();
};

struct LoopResult {
  std::vector<double> losses;                // of each update
  double step_ms = 0.0, processor_ms = 0.0;  // of an update, in the median
  int signal = 0;                            // that ended the run before its last step, or 0
  std::vector<double> step_times;            // ms of each update
  std::vector<Judged> judged;                // evaluations on the way
  bool stopped_early = false;                // by EarlyStopping
};

// Evaluation on the way. `evaluate` is asked every `every` steps; 0: never.
struct Judging {
  std::int64_t every = 0;
  bool keeps_best = false;
  std::function<std::vector<double>()> evaluate = {};
  EarlyStopping stopping = EarlyStopping();
  Bytes peak = {};  // of training and evaluation
};

// Takes steps until there are as many as the command says, evaluation sees no progress, or a signal
// asks any rank to stop. An error ends it after the last whole step has been kept, if it can be.
LoopResult run_loop(Trainee& trainee, const TrainCommand& command, Outputs& outputs,
                    Judging& judging);

}  // namespace ebb::cli
