// An ablation study: its rows, what was measured of each, and the measuring.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/ablate/subject.h"
#include "cli/ablate/technique.h"
#include "cli/curve.h"
#include "cli/measure.h"
#include "ebb/plan.h"

namespace ebb::cli {

struct StudyOptions {
  PlanningOptions planning;  // device and wishes for the machine
  TechniqueOptions techniques;
  std::int64_t steps = 0;   // of each run
  bool overcommit = false;  // run rows whose plan is larger than the memory that is available
};

// What a row's plan says. The same for all its runs.
struct Planned {
  Bytes peak, arena;
  CategoryBytes at_peak;
  double predicted_ms = 0.0, overhead = 1.0, plan_ms = 0.0;
  int instructions = 0, recomputed = 0;
  std::optional<Bytes> budget = {};
  std::string timeline;  // report::timeline_json
};

struct Row {
  std::string name;
  std::vector<std::string> techniques;
  std::optional<std::string> error = {};  // why there is nothing else
  Planned planned = {};
  Measured measured = {};
  std::vector<double> run_ms = {};  // of each run: its median step
  std::vector<double> losses = {};  // of each step; the same in every run

  bool done() const { return !run_ms.empty(); }
  double median_ms() const;
  double low_ms() const;
  double high_ms() const;
  double loss() const;  // mean over the last quarter of the steps
};

// To the bit, where what is not a number equals itself.
bool same_losses(const std::vector<double>& a, const std::vector<double>& b);

// Whether equal losses mean that the same was computed. The first loss is from before any update,
// the second has seen one, the third also what an optimizer carried from step to step; and losses
// that never change show nothing.
bool tell_of_training(const std::vector<double>& losses);

// One run of one row.
struct Run {
  Planned planned;
  Measured measured;
  double step_ms = 0.0;
  std::vector<double> losses;
};

class Study {
 public:
  Study(std::unique_ptr<Subject> subject, StudyOptions options, Rates rates);

  const Subject& subject() const { return *subject_; }

  // Trains from scratch. `after_step(loss, peak)` says whether to go on; nothing comes back when it
  // did not.
  std::optional<Run> run(const RowSpec& row, const std::function<bool(double, Bytes)>& after_step);

  // Automatic plans of a row at several budgets.
  std::vector<CurvePoint> curve(const RowSpec& row, int points, const BeforePlan& before) const;

 private:
  Setup setup_of(const RowSpec& row) const;
  Bytes budget_for(const RowSpec& row, const Setup& setup);

  std::unique_ptr<Subject> subject_;
  StudyOptions options_;
  Rates rates_;
  std::map<std::string, Bytes> budgets_;  // of rows, once found
};

}  // namespace ebb::cli
