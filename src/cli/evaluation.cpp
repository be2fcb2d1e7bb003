#include "cli/evaluation.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "cli/planning.h"
#include "ebb/data/loader.h"
#include "ebb/error.h"
#include "ebb/storage.h"

namespace ebb::cli {
namespace {

// The options of a forward pass, which keeps few activations: training's recomputation and budget
// do not apply. Variables stay where training has them.
CompileOptions of_evaluation(CompileOptions compile, const Plan& training) {
  compile.plan.budget.reset();
  compile.plan.recompute = {};
  compile.planner = {};
  compile.plan.offload.homes = homes_of(training);
  return compile;
}

// Every divisor of a batch, the largest first.
std::vector<std::int64_t> parts_of(std::int64_t batch) {
  std::vector<std::int64_t> parts;
  for (std::int64_t part = batch; part >= 1; --part)
    if (batch % part == 0) parts.push_back(part);
  return parts;
}

using NodeIds = std::unordered_set<std::uint64_t>;

// Bytes that the plan keeps between runs, except those that `others` keep too.
Bytes kept_beside(const Plan& plan, const NodeIds& others) {
  Bytes total;
  for (const Buffer& buffer : plan.buffers)
    if (plan.persists(buffer) &&
        !(buffer.place.leaf && others.contains(plan.leaves[buffer.place.leaf].node)))
      total += Storage::reservation(plan.device, buffer.size);
  return total;
}

}  // namespace

Metrics metrics_of(workloads::Workload& task) {
  return [&task](const Batch& b) {
    std::vector<Tensor> metrics{task.loss(b)};
    if (const Tensor share = task.accuracy(b)) metrics.push_back(share);
    if (task.weight) metrics.push_back(task.weight(b));
    return metrics;
  };
}

Metrics metrics_of(workloads::MultilevelWorkload& task) {
  return [&task](const Batch& b) {
    std::vector<Tensor> metrics = task.judge(b);
    for (const Tensor& share : task.judge_by_class(b)) metrics.push_back(share);
    return metrics;
  };
}

Bytes evaluation_keeps(nn::ModuleBase& model, const Metrics& metrics, const data::Dataset& test) {
  EvalStep step(model, metrics);
  NodeIds of_model;
  for (const nn::NamedVariable& v : model.parameters()) of_model.insert(v.variable.node()->id());
  for (const nn::NamedVariable& v : model.buffers()) of_model.insert(v.variable.node()->id());
  return kept_beside(step.plan(test.types(1)), of_model);
}

Bytes evaluation_keeps(const workloads::Options& options, const PlanningOptions& planning) {
  const auto task = workloads::make_workload(placed(options, planning));
  return evaluation_keeps(task->model(), metrics_of(*task), *task->test);
}

Evaluation::Evaluation(nn::ModuleBase& model, Metrics metrics, data::DatasetPtr test,
                       std::int64_t batch, std::int64_t batches, const CompileOptions& compile,
                       const TrainingMemory& training, std::function<Graph(const Graph&)> rewrite,
                       MeanOf mean_of)
    : step_(model, std::move(metrics), of_evaluation(compile, training.plan), std::move(rewrite)),
      test_(std::move(test)),
      mean_of_(mean_of) {
  const std::int64_t whole = std::min(batch, test_->size());
  items_ = std::min(batches, test_->size() / whole) * whole;
  const Bytes limit = training.budget.value_or(training.peak());
  for (const std::int64_t part : parts_of(whole)) {
    part_ = part, peak_ = peak_with(part, training);
    if (peak_ <= limit) return;
  }
  if (training.budget)
    throw MemoryError(fmt::format(
        "a budget of {} cannot be kept in evaluation, which takes {} for one item at a time{}; use "
        "--eval-batches 0 to leave it out",
        to_string(limit + training.fixed), to_string(peak_ + training.fixed),
        training.fixed > Bytes{}
            ? fmt::format(", {} of it the fixed cost of the process", to_string(training.fixed))
            : ""));
}

Bytes Evaluation::peak_with(std::int64_t part, const TrainingMemory& training) {
  const Plan& plan = step_.plan(test_->types(part));
  NodeIds kept;
  for (const Leaf& leaf : training.plan.leaves) kept.insert(leaf.node);
  return std::max(plan.arena(), training.arena) + training.persistent + kept_beside(plan, kept);
}

std::vector<double> Evaluation::run() {
  data::Loader loader(
      test_, {.batch = part_, .shuffle = false, .last = data::LastBatch::drop, .prefetch = 1});
  const std::int64_t count = items_ / part_;
  std::vector<double> sums;
  double total = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<double> values = step_(loader.next());
    double weight = 1.0;
    if (mean_of_ == MeanOf::targets) weight = values.back(), values.pop_back();
    sums.resize(values.size());
    if (weight == 0.0) continue;  // the mean over nothing is not a number
    for (std::size_t k = 0; k < values.size(); ++k) sums[k] += values[k] * weight;
    total += weight;
  }
  if (total == 0.0)
    throw ValueError(fmt::format(
        "evaluation: the first {} items of the test data have no targets, so that there is no test "
        "loss: use a larger --eval-batches, or 0",
        items_));
  for (double& sum : sums) sum /= total;
  return sums;
}

}  // namespace ebb::cli
