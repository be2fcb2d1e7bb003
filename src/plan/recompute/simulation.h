// What a set of decisions leads to: which steps run again and when, the exact peak and the time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/recompute/step_model.h"

namespace ebb {

// What happens to a value over one gap, from one step that makes or reads it to the next one.
enum class Hold : std::uint8_t {
  keep,  // it stays in memory
  stay,  // it is freed; once computed again, for whomever, it stays until the gap ends
  free,  // it is freed, and freed again after every time it is computed again inside the gap
};

// One choice a gap (see ModelValue::first_gap). After its last reader a value is freed, unless
// `keep` holds it for steps that run again later.
using Holds = std::vector<Hold>;
Holds keep_all(const StepModel& model);

// Whether a strategy may free this value before its last reader.
bool droppable(const StepModel& model, int value);

// Keeps whatever could not be computed again when it is needed. Returns the same decisions
// otherwise.
Holds made_possible(const StepModel& model, Holds holds);

struct Event {
  int step = 0;
  int before = 0;  // the step whose inputs it provides; itself when it runs in its own place
  std::uint32_t read =
      0;  // outputs that readers take from this run, as bits: others are still there
  bool again() const { return step != before; }
};

// A stretch over which a value lies in memory and nobody touches it.
struct Idle {
  int value = 0;
  int gap = 0;                // number of the gap the stretch lies in
  int after = 0, before = 0;  // steps between which it is idle, both excluded
};

class Simulation {
 public:
  explicit Simulation(const StepModel& model);

  // False when some step could not get an input: a variable that would be needed to compute it
  // again has changed by then. Keeping the value over `failed_gap` mends that.
  bool run(const Holds& holds);
  int failed_gap() const { return failed_gap_; }

  double ms() const { return ms_; }
  std::int64_t peak() const { return peak_; }
  const std::vector<Event>& events() const { return events_; }
  // Of every step, the most bytes live while it runs or while its inputs are computed again.
  const std::vector<std::int64_t>& profile() const { return profile_; }
  const std::vector<Idle>& idles() const { return idles_; }
  const StepModel& model() const { return model_; }

 private:
  struct Version {  // one copy of a value
    int value = 0;
    int last_read = -1;  // event; of one nobody reads, the event that made it
    bool in_arena = true, taken_over = false;
  };
  bool emit_missing(int step);
  void emit(int step, int before);
  void settle(int value, int step, const Holds& holds);
  void note_idle(int value, int step);
  void find_readers();
  void sweep();

  const StepModel& model_;
  std::vector<Event> events_;
  std::vector<std::int64_t> profile_;
  std::vector<Idle> idles_;
  double ms_ = 0.0;
  std::int64_t peak_ = 0;
  int failed_gap_ = -1;

  // Of every value:
  std::vector<char> present_;
  std::vector<int> version_;   // the copy that readers get
  std::vector<int> position_;  // index of the last of its positions that has passed
  std::vector<int> touched_;   // the last step that made or read it, runs of steps again included
  std::vector<int> settled_;   // the last step that made or read it for itself
  // Of every step: number of the search that reached it last.
  std::vector<int> reached_;
  int search_ = 0;

  std::vector<Version> versions_;
  std::vector<int> reads_, reads_end_;  // versions read by each event, end to end
  std::vector<int> made_begin_;         // first version made by each event
  std::vector<char> alive_;             // whether somebody reads what the event makes
  std::vector<int> missing_, stack_, made_again_;
};

}  // namespace ebb
