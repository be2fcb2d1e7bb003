// The progress of a run, on standard error.
//
//   report::Progress progress(steps);
//   for (std::int64_t step = 1; step <= steps; ++step) progress.update(step, loss, memory);
//
// On a terminal it is one line, redrawn at most ten times a second and cut to the terminal's width:
//   step 120/1000 ▕█▉        ▏ loss 2.3026  rate 3e-04  210 ms/step  1.50 GiB  3 min 05 s left
// Elsewhere it is plain lines, each complete in itself: at the first update, at every tenth of the
// way, after a minute without one, and at the end.
//
// Progress never fails a run: what cannot be written is dropped. It is used from one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/bytes.h"

namespace ebb::report {

struct ProgressOptions {
  std::string label;   // before everything else, such as "epoch 3"
  int descriptor = 2;  // where to write: standard error
};

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `total` is the step that ends the run, 0 when that is not known. Times are arguments so that a
  // caller with a clock of its own can give them.
  explicit Progress(std::int64_t total, ProgressOptions options = {},
                    Clock::time_point now = Clock::now());
  ~Progress();  // finishes
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Says that `step` is done. The time per step is the time between updates, averaged over the last
  // ten seconds or ten steps, whichever is longer; time before the first update, such as compiling,
  // does not count.
  void update(std::int64_t step, double loss, Bytes memory, Clock::time_point now = Clock::now());

  // The learning rate, shown from the next update on.
  void set_rate(double rate) { rate_ = rate; }

  // The test loss, shown from the next update on.
  void set_test_loss(double loss) { test_loss_ = loss; }

  // Another label from the next update on.
  void relabel(std::string label) { options_.label = std::move(label); }

  // Writes a line of the caller's above the progress line, without tearing it.
  void print(std::string_view line);

  // Writes the last state with the whole run's time, and ends the line. Later calls do nothing.
  void finish(Clock::time_point now = Clock::now());

 private:
  bool at_end() const { return total_ > 0 && step_ == total_; }
  bool due(Clock::time_point now) const;
  void draw(Clock::time_point now);
  void write(std::string_view bytes) const;

  std::int64_t total_;
  ProgressOptions options_;
  bool terminal_, unicode_;
  bool started_ = false, finished_ = false;
  std::int64_t step_ = 0;
  double loss_ = 0.0;
  Bytes memory_;
  std::optional<double> rate_, test_loss_;
  double recent_seconds_ = 0.0, recent_steps_ = 0.0;  // weighted by age; their ratio is the average
  Clock::time_point start_, updated_, drawn_;
  std::int64_t drawn_step_ = 0;
  std::string text_;  // what was drawn last
};

}  // namespace ebb::report
