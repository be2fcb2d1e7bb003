// Evaluation at the end of a run. It is planned together with the training step, so that the peak
// printed before the first step, and the budget, cover both.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/data/dataset.h"
#include "ebb/train/eval_step.h"
#include "ebb/workloads/train_spec.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {

// Memory that a program for evaluation keeps beside the model and the arena: its results and
// constants. Steps are planned with a budget reduced by it.
Bytes evaluation_keeps(nn::ModuleBase& model, const Metrics& metrics, const data::Dataset& test);
Bytes evaluation_keeps(const workloads::Options& options,
                       const workloads::PlanningOptions& planning);

// Memory that training holds while evaluation runs in its arena.
struct TrainingMemory {
  Bytes arena, persistent;
  const Plan& plan;  // the plan that these persistent bytes belong to
  // The limit for training and evaluation together. Without a budget, evaluation must not take more
  // than training does.
  std::optional<Bytes> budget = {};
  Bytes fixed = {};  // of the process, if the budget covers the whole process

  Bytes peak() const { return arena + persistent; }
};

// The loss and, for classifiers, the accuracy; then, if the workload has a weight, the number of
// targets.
Metrics metrics_of(workloads::Workload& task);
// The loss, the accuracy, and MultilevelWorkload::judge_by_class.
Metrics metrics_of(workloads::MultilevelWorkload& task);

// What the metrics of a batch are means over: its items, or targets, whose number is its last
// metric.
enum class MeanOf : std::uint8_t { items, targets };

class Evaluation {
 public:
  // Evaluates the first `batches` batches of `test`, in parts that keep the limit: the whole batch,
  // or its largest divisor that fits. `compile` has the arena that training runs in; `rewrite` is
  // EvalStep's. Throws a MemoryError if not even one item keeps the budget.
  Evaluation(nn::ModuleBase& model, Metrics metrics, data::DatasetPtr test, std::int64_t batch,
             std::int64_t batches, const CompileOptions& compile, const TrainingMemory& training,
             std::function<Graph(const Graph&)> rewrite = {}, MeanOf mean_of = MeanOf::items);

  Bytes peak() const { return peak_; }           // planned for training and evaluation together
  std::int64_t part() const { return part_; }    // items at a time
  std::int64_t items() const { return items_; }  // evaluated in total
  std::int64_t of_items() const { return test_->size(); }
  std::vector<double> run();  // the mean of every metric over all items or targets

 private:
  Bytes peak_with(std::int64_t part, const TrainingMemory& training);

  EvalStep step_;
  data::DatasetPtr test_;
  MeanOf mean_of_;
  std::int64_t part_ = 0, items_ = 0;
  Bytes peak_;
};

}  // namespace ebb::cli
