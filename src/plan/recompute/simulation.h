// What a list of runs leads to: the exact peak and the time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/recompute/step_model.h"

namespace ebb {

// Steps in the order they run: what is computed again is there more than once. Allowed are all
// lists in which whatever is read has been made before, and
// - anchors, that is steps that write outside the arena, wait to be copied out or cannot run again,
//   keep their order;
// - no step runs before the anchors that come before it in the graph;
// - none runs after a variable it reads has changed.
using Runs = std::vector<int>;
Runs keep_all(const StepModel& model);

// Whether a value can be computed again.
bool droppable(const StepModel& model, int value);

// One copy of a value. It lies in memory from the run that makes it to the last one that reads it.
struct Copy {
  int value = 0;
  int made = -1;  // run; -1: an input, there from the beginning
  int last = -1;  // run that reads it last; of one nobody reads, the run that made it
  bool in_arena = true;
  bool taken_over = false;  // by an output of the last run
};

class Simulation {
 public:
  explicit Simulation(const StepModel& model);

  // Takes out of the list the runs whose results nobody reads. False when it is not allowed.
  bool run(Runs& runs);

  double ms() const { return ms_; }
  std::int64_t peak() const { return peak_; }
  // Of every run, the bytes live meanwhile.
  const std::vector<std::int64_t>& profile() const { return profile_; }

  // Copies in the order they are made, inputs first; readers take the newest. Of each run those it
  // reads, and the first it makes.
  const std::vector<Copy>& copies() const { return copies_; }
  std::span<const int> reads(int run) const {
    const std::size_t r = static_cast<std::size_t>(run);
    return std::span(reads_).subspan(static_cast<std::size_t>(read_begin_[r]),
                                     static_cast<std::size_t>(read_begin_[r + 1] - read_begin_[r]));
  }
  int first_made(int run) const { return made_begin_[static_cast<std::size_t>(run)]; }

  // The values that a step reads and makes, as in the model.
  std::span<const int> inputs(int step) const {
    const Step& s = steps_[static_cast<std::size_t>(step)];
    return std::span(operands_).subspan(s.inputs, s.outputs - s.inputs);
  }
  std::int64_t bytes(int value) const { return bytes_[static_cast<std::size_t>(value)]; }

  // The number of a step among the anchors, or -1; and how many may have run when a step runs.
  int anchor(int step) const { return steps_[static_cast<std::size_t>(step)].anchor; }
  int valid_until(int step) const { return steps_[static_cast<std::size_t>(step)].valid_until; }
  const StepModel& model() const { return model_; }

 private:
  // A step of the model without vectors of its own: lists are simulated thousands of times.
  struct Step {
    std::size_t inputs = 0, outputs = 0, end = 0;  // its values in operands_
    std::size_t overwrites = 0, overwrites_end = 0;
    std::int64_t workspace = 0;
    double ms = 0.0;
    int anchor = -1, place = 0, valid_until = 0;  // in anchors
    bool recomputable = true;
  };

  void flatten();
  void find_anchors();
  bool follow(const Runs& runs);
  bool find_readers(const Runs& runs);
  void take_out_dead(Runs& runs);
  void sweep(const Runs& runs);
  const Step& step(int number) const { return steps_[static_cast<std::size_t>(number)]; }

  const StepModel& model_;
  int anchors_ = 0;
  std::vector<Step> steps_;
  std::vector<int> operands_;
  std::vector<Overwrite> overwrites_;
  std::vector<std::int64_t> bytes_;             // of every value
  std::vector<char> in_arena_, newest_counts_;  // of every value: whether a later copy is read
  std::vector<int> inputs_;                     // values

  std::vector<Copy> copies_;
  std::vector<int> reads_, read_begin_, made_begin_;  // see reads() and first_made()
  std::vector<char> again_, alive_;                   // of every run
  std::vector<int> newest_;                           // copy of every value
  std::vector<char> done_;                            // of every step: whether it has run
  std::vector<int> moved_copies_, moved_runs_;        // where the dead were taken out
  std::vector<std::int64_t> profile_;
  double ms_ = 0.0;
  std::int64_t peak_ = 0;
};

}  // namespace ebb
