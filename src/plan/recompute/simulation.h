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

  // The number of a step among the anchors, or -1; and how many may have run when a step runs.
  int anchor(int step) const { return anchor_[static_cast<std::size_t>(step)]; }
  int valid_until(int step) const { return valid_until_[static_cast<std::size_t>(step)]; }
  const StepModel& model() const { return model_; }

 private:
  void find_anchors();
  bool follow(const Runs& runs);
  bool find_readers(Runs& runs);
  void sweep(const Runs& runs);

  const StepModel& model_;
  int anchors_ = 0;
  std::vector<int> anchor_, place_, valid_until_;  // of every step, in anchors
  std::vector<int> inputs_;                        // values

  std::vector<Copy> copies_;
  std::vector<int> reads_, read_begin_, made_begin_;  // see reads() and first_made()
  std::vector<char> again_, alive_;                   // of every run
  std::vector<int> newest_;                           // copy of every value
  std::vector<char> done_;                            // of every step: whether it has run
  std::vector<std::int64_t> profile_;
  double ms_ = 0.0;
  std::int64_t peak_ = 0;
};

}  // namespace ebb
