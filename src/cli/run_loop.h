// The steps of a run: progress, checkpoints during the run, and every way in which a run can end
// early.
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
  double step_ms = 0.0, processor_ms = 0.0;  // the median over updates
  int signal = 0;                            // the signal that ended the run before its end, or 0
  std::vector<double> step_times;            // ms of each update
  std::vector<Judged> judged;                // evaluations during the run
  bool stopped_early = false;                // by EarlyStopping
};

// Evaluation during the run. `evaluate` is called every `every` steps; 0: never.
struct Judging {
  std::int64_t every = 0;
  bool keeps_best = false;
  std::function<std::vector<double>()> evaluate = {};
  EarlyStopping stopping = EarlyStopping();
  Bytes peak = {};  // of training and evaluation together
};

// Takes steps until the command's number of steps is reached, early stopping ends the run, or a
// signal asks any rank to stop. On an error it first keeps a checkpoint of the last complete step,
// if possible.
LoopResult run_loop(Trainee& trainee, const TrainCommand& command, Outputs& outputs,
                    Judging& judging);

}  // namespace ebb::cli
