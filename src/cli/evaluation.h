// The test at the end of a run. It is planned together with the training step, so that the peak
// told before the first step, and the budget, are of both.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ebb/data/dataset.h"
#include "ebb/train/eval_step.h"
#include "ebb/workloads/train_spec.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {

// What a program for evaluation keeps beside the model and the arena: its results and constants.
// Steps are planned with that much less of a budget.
Bytes evaluation_keeps(nn::ModuleBase& model, const Metrics& metrics, const data::Dataset& test);
Bytes evaluation_keeps(const workloads::Options& options,
                       const workloads::PlanningOptions& planning);

// What training holds while evaluation runs in its arena.
struct TrainingMemory {
  Bytes arena, persistent;
  const Plan& plan;  // whose persistent buffers these are
  // What training and evaluation may take; without a budget, evaluation is to take no more than
  // training does.
  std::optional<Bytes> budget = {};
  Bytes fixed = {};  // of the process, where the budget that was typed is for that too

  Bytes peak() const { return arena + persistent; }
};

// The loss and, of classifiers, the share of right answers. Last the number of targets, where the
// workload has a weight.
Metrics metrics_of(workloads::Workload& task);
// The loss, the share of right answers, and MultilevelWorkload::judge_by_class.
Metrics metrics_of(workloads::MultilevelWorkload& task);

// What the metrics of a batch are means of: its items, or as many targets as its last metric says.
enum class MeanOf : std::uint8_t { items, targets };

class Evaluation {
 public:
  // The first `batches` batches of `test` are judged, in parts that keep the limit: the whole
  // batch, or the largest divisor of it that fits. `compile` carries the arena that training runs
  // in, `rewrite` is EvalStep's. Where not even one item keeps a budget, this throws a MemoryError.
  Evaluation(nn::ModuleBase& model, Metrics metrics, data::DatasetPtr test, std::int64_t batch,
             std::int64_t batches, const CompileOptions& compile, const TrainingMemory& training,
             std::function<Graph(const Graph&)> rewrite = {}, MeanOf mean_of = MeanOf::items);

  Bytes peak() const { return peak_; }           // of training and evaluation
  std::int64_t part() const { return part_; }    // items at a time
  std::int64_t items() const { return items_; }  // in all
  std::int64_t of_items() const { return test_->size(); }
  std::vector<double> run();  // the mean of every metric over all items, or targets

 private:
  Bytes peak_with(std::int64_t part, const TrainingMemory& training);

  EvalStep step_;
  data::DatasetPtr test_;
  MeanOf mean_of_;
  std::int64_t part_ = 0, items_ = 0;
  Bytes peak_;
};

}  // namespace ebb::cli
