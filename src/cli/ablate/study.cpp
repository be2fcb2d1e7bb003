#include "cli/ablate/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "ebb/arena.h"
#include "ebb/data/loader.h"
#include "ebb/report/timeline.h"

namespace ebb::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Steps at the start of a run that are not timed: they touch memory for the first time, and on a
// GPU the second is recorded.
constexpr std::size_t warm_up = 2;

// Enough to tell any two float32 losses apart, and what files hold: a run before and one after a
// resumption can be compared to the bit.
double nine_digits(double value) {
  return std::isfinite(value) ? std::stod(fmt::format("{:.9g}", value)) : value;
}

data::DatasetPtr training_data(const workloads::Workload& task,
                               const std::optional<std::int64_t>& items) {
  if (!items) return task.train;
  if (*items > task.train->size())
    throw ValueError(
        fmt::format("--items {}: there are only {} to train on", *items, task.train->size()));
  return data::Subset::range(task.train, 0, *items);
}

data::Loader loader_for(const workloads::Workload& task, const StudyOptions& options) {
  return data::Loader(
      training_data(task, options.items),
      {.batch = task.batch_size, .seed = options.workload.seed, .last = data::LastBatch::drop});
}

TrainStep make_step(workloads::Workload& task, const Setup& setup) {
  TrainOptions train = step_options(setup.planning);
  train.accumulate = setup.accumulate;
  train.compile = setup.compile;
  // Adam in fewer bits takes Adam's rate; other rules have rates of their own.
  const auto& name = setup.planning.optimizer;
  const std::optional<double> rate =
      name && name->starts_with("adam") ? std::optional(task.optimizer().rate()) : std::nullopt;
  return TrainStep(
      task.model(), optimizer_of(task, setup.planning, rate),
      [&task](const Batch& b) { return task.loss(b); }, train);
}

std::unique_ptr<workloads::Workload> make_task(const Setup& setup) {
  return workloads::make_workload(placed(setup.workload, setup.planning));
}

Planned facts_of(const Plan& plan, const std::optional<Bytes>& budget) {
  return {plan.peak,
          plan.arena,
          plan.at_peak,
          plan.predicted_ms,
          plan.overhead(),
          plan.made_in_ms,
          static_cast<int>(plan.instructions.size()),
          plan.recomputed_nodes(),
          budget,
          report::timeline_json(plan)};
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

Study::Study(StudyOptions options, Rates rates)
    : options_(std::move(options)), rates_(std::move(rates)) {
  const auto task = workloads::make_workload(options_.workload);
  batch_ = task->batch_size;
  parameters_ = task->model().parameter_count();
}

Setup Study::setup_of(const RowSpec& row) const {
  Setup setup = make_setup(row, options_.workload, options_.planning, options_.techniques);
  setup.compile.plan.rates = rates_;
  setup.compile.machine = options_.planning.machine;
  return setup;
}

Study::Traced Study::trace(const RowSpec& row) const {
  const Setup setup = setup_of(row);
  Traced traced{make_task(setup), {}, setup.compile};
  TrainStep step = make_step(*traced.task, setup);
  traced.graph = step.trace(loader_for(*traced.task, options_).types().front());
  return traced;
}

Bytes Study::budget_for(const RowSpec& row, const Setup& setup) {
  const auto known = budgets_.find(row.name);
  if (known != budgets_.end()) return known->second;
  Traced traced = trace(row);
  traced.compile.plan.budget.reset();
  const auto peak_with = [&](Recompute::Mode mode) {
    traced.compile.plan.recompute = {mode};
    return plan_program(traced.graph, traced.compile).peak;
  };
  Bytes budget;
  if (setup.budget == BudgetRule::as_blocks) {
    const Bytes all = peak_with(Recompute::Mode::none), blocks = peak_with(Recompute::Mode::blocks);
    // A model of one block, or of none, is not helped by that rule: half way to the least then.
    const bool helps = blocks.count < all.count - all.count / 50;
    budget =
        helps ? blocks : Bytes{(all.count + least_budget(traced.graph, traced.compile).count) / 2};
  } else {
    budget = least_budget(traced.graph, traced.compile);
  }
  return budgets_[row.name] = budget;
}

std::optional<Run> Study::run(const RowSpec& row,
                              const std::function<bool(double, Bytes)>& after_step) {
  Setup setup = setup_of(row);
  if (setup.budget != BudgetRule::none) setup.compile.plan.budget = budget_for(row, setup);
  const auto task = make_task(setup);
  data::Loader loader = loader_for(*task, options_);
  const MemoryMeter meter(options_.workload.device);

  TrainStep step = make_step(*task, setup);
  const std::vector<TensorType> types = loader.types().front();
  const Plan& plan = step.plan(types);
  Run run;
  run.planned = facts_of(plan, setup.compile.plan.budget);
  std::vector<double> times;
  for (std::int64_t i = 0; i < options_.steps; ++i) {
    const Batch batch = loader.next();
    const Clock::time_point begin = Clock::now();
    const double loss = step(batch).loss;
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    run.losses.push_back(nine_digits(loss));
    if (!after_step(loss, run.planned.peak)) return {};
  }
  const std::size_t untimed = std::min(warm_up, times.size() - 1);
  run.step_ms = median({times.begin() + static_cast<std::ptrdiff_t>(untimed), times.end()});
  run.measured = meter.read(step, types);
  return run;
}

}  // namespace ebb::cli
