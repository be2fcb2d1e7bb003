#include "cli/prune_curve.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/evaluation.h"
#include "cli/memory_check.h"
#include "cli/verb.h"
#include "ebb/prune/gradual.h"
#include "ebb/train/train_step.h"

namespace ebb::cli {
namespace {

PrunePoint measured(const workloads::Options& workload, const PlanningOptions& planning,
                    const Rates& rates, const PruneCurveOptions& options, double share) {
  const auto task = workloads::make_workload(placed(workload, planning));
  data::Loader loader(task->train,
                      workloads::training_loader(task->batch_size, workload.seed, workload.device));
  const std::vector<TensorType> types = loader.types().front();
  task->load();
  for (const nn::NamedVariable& p : task->model().parameters())
    if (!p.variable.has_value()) p.variable.materialise(workload.seed);
  const LossFunction loss = [&](const Batch& b) { return task->loss(b); };
  if (share > 0.0) {
    const prune::Structure whole = prune::find_structure(task->model(), loss, types);
    const prune::Shrinking shrinking(whole, prune::usual_structure(task->model()));
    task->shrink(whole, shrinking.removal(whole, prune::magnitude_scores(whole), share),
                 prune::Values::copied);
  }
  TrainOptions train = step_options(planning);
  train.weight = task->weight;
  train.compile = compile_options(planning, workload.seed, rates, {});
  train.accumulate = accumulation(*task, planning, train.compile);
  check_accumulation(train.accumulate, task->batch_size);
  TrainStep step(task->model(), optimizer_of(*task, planning, {}), loss, train);
  const Plan& plan = step.plan(types);
  require_memory(plan.peak, device_of(planning), options.overcommit,
                 "a smaller --batch takes less");
  for (std::int64_t i = 0; i < options.recover; ++i) step(loader.next());

  PrunePoint point{.share = share, .parameters = task->model().parameter_count()};
  for (const nn::NamedVariable& p : task->model().parameters())
    point.weights += p.variable.type().bytes();
  point.bytes = plan.at_peak[Category::weights] + plan.at_peak[Category::gradients] +
                plan.at_peak[Category::optimizer];
  point.peak = plan.peak, point.predicted_ms = plan.predicted_ms;
  CompileOptions compile = step.options().compile;
  compile.arena = step.arena();
  compile.plan.budget.reset();
  Evaluation evaluation(task->model(), metrics_of(*task), task->test, task->batch_size,
                        options.eval_batches, compile, {plan.arena(), plan.persistent, plan});
  point.loss = evaluation.run().front();
  return point;
}

}  // namespace

std::vector<PrunePoint> prune_curve(const workloads::Options& workload,
                                    const PlanningOptions& planning, const Rates& rates,
                                    const PruneCurveOptions& options) {
  std::vector<double> shares = options.shares;
  shares.push_back(0.0);
  std::sort(shares.begin(), shares.end());
  shares.erase(std::unique(shares.begin(), shares.end()), shares.end());
  if (shares.back() >= 1.0)
    throw UsageError(fmt::format("--prune takes shares below 1, but {} came", shares.back()));
  std::vector<PrunePoint> points;
  for (const double share : shares)
    points.push_back(measured(workload, planning, rates, options, share));
  return points;
}

nlohmann::ordered_json to_json(const std::vector<PrunePoint>& points) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PrunePoint& p : points)
    rows.push_back({{"share", p.share},
                    {"parameters", p.parameters},
                    {"weight_bytes", p.weights.count},
                    {"weights_gradients_state", p.bytes.count},
                    {"planned_peak_bytes", p.peak.count},
                    {"predicted_ms", p.predicted_ms},
                    {"test_loss", p.loss}});
  return rows;
}

std::string to_table(const std::vector<PrunePoint>& points) {
  std::string text =
      fmt::format("{:>7} {:>14} {:>12} {:>24} {:>12} {:>10}\n", "pruned", "parameters", "weights",
                  "weights + grads + state", "peak", "test loss");
  for (const PrunePoint& p : points)
    text += fmt::format("{:>5.1f} % {:>14} {:>12} {:>24} {:>12} {:>10.4f}\n", 100.0 * p.share,
                        p.parameters, to_string(p.weights), to_string(p.bytes), to_string(p.peak),
                        p.loss);
  return text;
}

}  // namespace ebb::cli
