// A problem inside an engine: its place among the others, its counters, its state in addition to
// the parameters, and its programs.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ebb/mlo/problem.h"
#include "ebb/program.h"
#include "ebb/report/run_log.h"
#include "mlo/feeding.h"
#include "mlo/snapshot.h"
#include "train/programs_by_shape.h"

namespace ebb::mlo {

// An update as it was taken.
struct Taken {
  std::vector<Batch> batches;  // one for each local step
  double rate = 0.0, step = 0.0;
};

// The use of a local step's gradients.
enum class StepKind : bool { accumulate, update };

class Level {
 public:
  Level(Problem& problem, const CompileOptions& compile, const RankOptions& ranks);
  ~Level();
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  // --- Its place; set by the engine
  std::vector<Level*> uppers, lowers;
  std::vector<std::vector<Level*>> paths;  // see LevelPath
  bool rolls_back = false;                 // after a step of the levels above
  report::RunLog* log = nullptr;

  Problem& problem() const { return problem_; }
  const Config& config() const { return problem_.config(); }
  // The leaves of its batches, and the ranks that share them.
  const RankOptions& ranks() const { return ranks_; }
  const std::string& name() const { return problem_.name(); }
  optim::StateStore& optimizer_state() { return optimizer_state_; }
  optim::StateStore& kept() { return kept_; }  // accumulated gradients, baselines
  Snapshot& snapshot() { return snapshot_; }
  // Whether the state at the start of the inner loop is kept.
  bool keeps_snapshot() const;
  // All gradients of one update are computed in one program. Impossible above other levels, whose
  // parameters change between local steps.
  bool gathers() const { return lowers.empty(); }
  // Sums of gradients are kept from one local step to the next.
  bool accumulates() const { return !gathers() && config().gradient_accumulation > 1; }
  // Parameters, buffers and all other state that exists now.
  std::vector<Variable> variables() const;

  std::int64_t count() const { return count_; }
  std::int64_t updates() const { return updates_; }
  const Stats& last() const { return last_; }
  // The k-th last update; 0: the last.
  const Taken& taken(std::int64_t ago) const;

  // A local step, if all levels below are ready for it, and steps of the levels above when its
  // inner loop ends.
  void step(std::int64_t global_step);
  // If a higher level has stepped, returns to the start of the inner loop and repeats the last
  // update.
  void roll_back();

  std::int64_t loop_length() const;  // local steps of an inner loop
  // Whether the next step of the engine includes a local step of this level.
  bool steps_next() const;
  // Whether a program has begun to change variables since the engine's step began.
  bool wrote = false;

  // The variables, by Node::id, that are outside the device (see mlo/homes.h). Before its first
  // plan.
  void set_homes(const std::unordered_map<std::uint64_t, Tier>& homes);
  // The graphs of its steps for batches as its data gives them.
  std::vector<Graph> graphs();
  // How its programs are planned, without a budget.
  const CompileOptions& compile() const { return compile_; }
  // Whether its steps have plans within its budget, by a quick search.
  bool keeps_budget();

  // The plan of its steps for batches as its data gives them.
  const Plan& plan(StepKind kind);
  // The smallest budget of its steps, for all memory in use while it runs.
  Bytes least_budget();
  void each_program(const std::function<void(const Program&)>& visit) const;
  // Local steps, and runs of the level's programs, per step of the engine, on average.
  double steps_for_each() const;
  double runs_for_each() const;
  // Bytes of its programs' outputs.
  Bytes output_bytes() const;
  // Traces its updates once, so that all its state variables exist.
  void trace_once();

  // State to store in checkpoints in addition to the variables.
  struct Counters {
    std::int64_t count = 0, updates = 0, schedule_steps = 0, snapshot_updates = 0;
    bool loop_starts = true, loop_over = false;
    std::vector<bool> ready;  // of each lower level
  };
  Counters counters() const;
  void restore(const Counters& counters);
  // Other state on the host that a step changes: saved before a step, and restored if the step
  // fails.
  struct HostState {
    Counters counters;
    std::vector<Batch> pending;
    std::deque<Taken> history;
    std::vector<data::Loader::State> loaders;
    std::string problem;
  };
  HostState host_state() const;
  void restore(HostState state);
  std::vector<Batch>& pending() { return pending_; }
  std::deque<Taken>& history() { return history_; }

 private:
  using Types = std::vector<std::vector<TensorType>>;  // of each batch that is fed

  double next_rate() const;
  void lower_is_ready(const Level& lower);
  void descend();
  void update_with(const std::vector<Batch>& batches);
  void run(StepKind kind, const std::vector<Batch>& own, double rate, double step);
  void write_log(std::int64_t global_step);
  // Parameters, buffers and optimizer state: what steps change and a snapshot holds.
  std::vector<Variable> stepped_variables() const;
  Graph trace(StepKind kind, const Feeding& feeding, const Types& types);
  ProgramsByShape& programs(StepKind kind, const Feeding& feeding, const Types& types);
  // Bytes on the device of all variables of the engine's levels that the graph does not use.
  Bytes bytes_beside(const Graph& graph) const;
  Bytes numbers(std::size_t count) const;
  Feeding planned_feeding();
  static Types planned_types(const Feeding& feeding);

  Problem& problem_;
  CompileOptions compile_;
  RankOptions ranks_;
  optim::StateStore optimizer_state_, kept_;
  Snapshot snapshot_;
  std::unique_ptr<ProgramsByShape> accumulate_, update_;

  std::int64_t count_ = 0;             // local steps
  std::int64_t updates_ = 0;           // of the parameters
  std::int64_t schedule_steps_ = 0;    // how far the schedule has gone
  std::int64_t snapshot_updates_ = 0;  // updates at the time of the snapshot
  bool loop_starts_ = true;            // the next local step is the first of an inner loop
  bool loop_over_ = false;      // a higher level has stepped, and this one has not rolled back yet
  std::vector<bool> ready_;     // whether each lower level has ended an inner loop
  std::vector<Batch> pending_;  // of the update to come
  std::deque<Taken> history_;   // the updates of an inner loop, oldest first
  std::array<std::vector<std::string>, 2> names_;  // of the programs' outputs, by kind of step
  bool traced_ = false;
  Stats last_;
};

}  // namespace ebb::mlo
