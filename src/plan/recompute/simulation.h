// Finds the exact peak of live bytes and the predicted time of a list of runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/recompute/step_model.h"

namespace ebb::planning {

// Steps in the order in which they run; a recomputed step occurs more than once. A list is valid if
// every value is made before it is read, and
// - anchors keep their order: steps that write outside the arena, whose value is copied to a
//   variable at the end, or that are needed and cannot run again;
// - no step runs before an anchor that precedes it in the original order;
// - no step runs after a variable that it reads has changed.
using Runs = std::vector<int>;
Runs keep_all(const StepModel& model);

// Whether a value can be freed and recomputed.
bool droppable(const StepModel& model, int value);

// One copy of a value. It is live from the run that makes it to the last run that reads it.
struct Copy {
  int value = 0;
  int made = -1;  // run; -1: an input, live from the beginning
  int last = -1;  // the last run that reads it, or `made` if none does
  bool in_arena = true;
  bool taken_over = false;  // an output of run `last` overwrites it
};

class Simulation {
 public:
  explicit Simulation(const StepModel& model);

  // Simulates a list and removes the runs whose results are not read. False if it is not valid.
  bool run(Runs& runs);

  double ms() const { return ms_; }
  std::int64_t peak() const { return peak_; }
  // The bytes that are live during each run.
  const std::vector<std::int64_t>& profile() const { return profile_; }

  // All copies, inputs first, then in the order in which they are made; runs read the newest copy
  // of a value. `reads`: the copies that a run reads; `first_made`: the first copy that it makes.
  const std::vector<Copy>& copies() const { return copies_; }
  std::span<const int> reads(int run) const {
    const std::size_t r = static_cast<std::size_t>(run);
    return std::span(reads_).subspan(static_cast<std::size_t>(read_begin_[r]),
                                     static_cast<std::size_t>(read_begin_[r + 1] - read_begin_[r]));
  }
  int first_made(int run) const { return made_begin_[static_cast<std::size_t>(run)]; }

  // The values that a step reads, and the size of a value, as in the model.
  std::span<const int> inputs(int step) const {
    const Step& s = steps_[static_cast<std::size_t>(step)];
    return std::span(operands_).subspan(s.inputs, s.outputs - s.inputs);
  }
  std::int64_t bytes(int value) const { return bytes_[static_cast<std::size_t>(value)]; }

  // The index of a step among the anchors, or -1; and how many anchors may run before a step.
  int anchor(int step) const { return steps_[static_cast<std::size_t>(step)].anchor; }
  int valid_until(int step) const { return steps_[static_cast<std::size_t>(step)].valid_until; }
  const StepModel& model() const { return model_; }

 private:
  // A step of the model without vectors of its own, and small: lists are simulated thousands of
  // times.
  struct Step {
    std::uint32_t inputs = 0, outputs = 0, end = 0;  // ranges of its values in operands_
    std::uint32_t overwrites = 0, overwrites_end = 0;
    int anchor = -1, place = 0, valid_until = 0;  // own index, fewest and most anchors before it
    std::int64_t workspace = 0;
    double ms = 0.0;
    bool recomputable = true;
  };

  void flatten();
  void find_anchors();
  bool follow(const Runs& runs);
  bool all_are_read(const Runs& runs);
  void find_readers(const Runs& runs);
  void take_out_dead(Runs& runs);
  void sweep(const Runs& runs);
  const Step& step(int number) const { return steps_[static_cast<std::size_t>(number)]; }

  const StepModel& model_;
  int anchors_ = 0;
  std::vector<Step> steps_;
  std::vector<int> operands_;
  std::vector<Overwrite> overwrites_;
  std::vector<std::int64_t> bytes_;             // by value
  std::vector<char> in_arena_, newest_counts_;  // by value; the latter: whether new copies are read
  std::vector<int> inputs_;                     // values

  std::vector<Copy> copies_;
  std::vector<int> reads_, read_begin_, made_begin_;  // see reads() and first_made()
  std::vector<char> again_, alive_;                   // by run: is a recomputation, is needed
  std::vector<int> newest_;                           // by value: its newest copy
  std::vector<char> done_;                            // by step: whether it has run
  std::vector<int> moved_copies_, moved_runs_;        // new indices after dead runs are removed
  std::vector<std::int64_t> profile_;
  double ms_ = 0.0;
  std::int64_t peak_ = 0;
};

}  // namespace ebb::planning
