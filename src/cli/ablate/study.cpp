#include "cli/ablate/study.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "cli/memory_check.h"
#include "ebb/report/timeline.h"

namespace ebb::cli {
namespace {

// Steps at the start of a run that are not timed: they touch memory for the first time, and on a
// GPU the second is recorded.
constexpr std::size_t warm_up = 2;

// Enough to tell any two float32 losses apart, and what files hold: a run before and one after a
// resumption can be compared to the bit.
double to_nine_digits(double value) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.9g}", value)) : value;
}

Planned facts_of(const Plan& plan, const std::optional<Bytes>& budget,
                 const report::SourceLines& sources) {
  return {plan.peak,
          plan.arena(),
          plan.at_peak,
          plan.predicted_ms,
          plan.overhead(),
          plan.made_in_ms,
          static_cast<int>(plan.instructions.size()),
          plan.recomputed_nodes(),
          budget,
          report::timeline_json(plan, sources)};
}

}  // namespace

double Row::median_ms() const { return median(run_ms); }
double Row::low_ms() const { return *std::min_element(run_ms.begin(), run_ms.end()); }
double Row::high_ms() const { return *std::max_element(run_ms.begin(), run_ms.end()); }
double Row::loss() const {
  const auto count = static_cast<std::ptrdiff_t>((losses.size() + 3) / 4);
  return std::accumulate(losses.end() - count, losses.end(), 0.0) / static_cast<double>(count);
}

bool same_losses(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

bool tell_of_training(const std::vector<double>& losses) {
  return losses.size() >= 3 &&
         std::all_of(losses.begin(), losses.end(),
                     [](double loss) { return std::isfinite(loss); }) &&
         std::adjacent_find(losses.begin(), losses.end(), std::not_equal_to<>()) != losses.end();
}

Study::Study(std::unique_ptr<Subject> subject, StudyOptions options, Rates rates)
    : subject_(std::move(subject)), options_(std::move(options)), rates_(std::move(rates)) {}

Setup Study::setup_of(const RowSpec& row) const {
  return make_setup(row, options_.planning, rates_, options_.techniques);
}

Bytes Study::budget_for(const RowSpec& row, const Setup& setup) {
  const auto known = budgets_.find(row.name);
  if (known != budgets_.end()) return known->second;
  Setup other = setup;
  other.compile.plan.budget.reset();
  const auto start_with = [&](Recompute::Mode mode) {
    other.compile.plan.recompute = {mode};
    return subject_->start(other);
  };
  const auto least = [&] { return start_with(Recompute::Mode::automatic)->least_budget(); };
  Bytes budget;
  if (setup.budget == BudgetRule::as_blocks) {
    const Bytes most = start_with(Recompute::Mode::none)->plan().peak,
                blocks = start_with(Recompute::Mode::blocks)->plan().peak;
    // A model of one block, or of none, is not helped by that rule: half way to the least then.
    const bool helps = blocks.count < most.count - most.count / 50;
    budget = helps ? blocks : Bytes{(most.count + least().count) / 2};
  } else {
    budget = least();
  }
  return budgets_[row.name] = budget;
}

std::vector<CurvePoint> Study::curve(const RowSpec& row, int points,
                                     const BeforePlan& before) const {
  Setup setup = setup_of(row);
  const auto start_with = [&](std::optional<Bytes> budget, const Recompute& recompute) {
    setup.compile.plan.budget = budget;
    setup.compile.plan.recompute = recompute;
    return subject_->start(setup);
  };
  return frontier_curve(
      {[&](std::optional<Bytes> budget) { return start_with(budget, budget_rule(budget))->plan(); },
       [&] { return start_with({}, {Recompute::Mode::automatic})->least_budget(); }},
      points, before);
}

std::optional<Run> Study::run(const RowSpec& row,
                              const std::function<bool(double, Bytes)>& after_step) {
  Setup setup = setup_of(row);
  if (setup.budget != BudgetRule::none) setup.compile.plan.budget = budget_for(row, setup);
  const auto trial = subject_->start(setup);
  Run run;
  run.planned = facts_of(trial->plan(), setup.compile.plan.budget, subject_->sources);
  require_memory(run.planned.peak, device_of(options_.planning), options_.overcommit,
                 "a smaller --batch takes less");
  std::vector<double> times;
  for (std::int64_t i = 0; i < options_.steps; ++i) {
    const Trial::Step taken = trial->step();
    times.push_back(taken.ms);
    run.losses.push_back(to_nine_digits(taken.loss));
    if (!after_step(taken.loss, run.planned.peak)) return {};
  }
  const std::size_t untimed = std::min(warm_up, times.size() - 1);
  run.step_ms = median({times.begin() + static_cast<std::ptrdiff_t>(untimed), times.end()});
  run.measured = trial->measured();
  return run;
}

}  // namespace ebb::cli
