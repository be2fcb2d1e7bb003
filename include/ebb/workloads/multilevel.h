// Ready-made multilevel problems, for the command line.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/mlo/engine.h"
#include "ebb/workloads/workload.h"

namespace ebb::workloads {

// The settings of one level; a setting without a value takes the workload's default.
struct LevelOptions {
  std::optional<mlo::Method> method;
  std::optional<std::int64_t> unroll, accumulate, warmup, iterations;  // of neumann and cg
  std::optional<double> rate, clip, alpha;                             // alpha: the method's
  std::optional<std::string> optimizer;
  std::optional<Precision> precision;
  std::optional<Recompute> recompute;
  std::optional<Bytes> budget;
  std::optional<ParameterForm> form;  // of bfloat16 parameters

  // `config`, the defaults of a level, with these settings applied.
  mlo::Config over(mlo::Config config) const;
  optim::Optimizer over(const optim::Optimizer& optimizer) const;
  DType dtype() const;  // the dtype in which the level's module is made
};

inline constexpr double usual_imbalance = 100.0;
inline constexpr std::int64_t usual_meta = 1000;

struct MultilevelOptions {
  Options common;  // name, batch, data, device, seed, sizes of the classifier
  std::optional<std::string> classifier;  // one of classifier_names(); by default the first
  std::optional<double> imbalance;        // how many times fewer items the rarest class has
  std::optional<std::int64_t> meta;       // items of the balanced set
  bool unweighted = false;  // the baseline: the lowest level alone, every item with the same weight
  std::map<std::string, LevelOptions> levels;  // by the names of problems
  RankOptions ranks = {};  // a choice of the run, not a setting; batches are this rank's parts
};

class MultilevelWorkload {
 public:
  virtual ~MultilevelWorkload() = default;

  virtual std::vector<mlo::Problem*> problems() = 0;
  virtual mlo::Dependencies dependencies() const = 0;
  // The evaluated model and its metrics: the mean loss and the accuracy.
  virtual nn::ModuleBase& model() = 0;
  virtual std::vector<Tensor> judge(const Batch& batch) = 0;
  // For each class, the share of the batch's items that belong to it, and the share of the batch
  // that belongs to it and is classified correctly: 2 · classes() scalars.
  virtual std::vector<Tensor> judge_by_class(const Batch& batch) = 0;
  virtual std::int64_t classes() const = 0;

  data::DatasetPtr test;
  std::map<std::string, DataPart> parts;  // "train", "meta", "test"
  std::int64_t batch_size = 1;
  MultilevelOptions settings;  // as Workload::settings, with those of every level
  std::optional<Limit> limit;
};

std::vector<std::string> multilevel_names();
bool is_multilevel(const std::string& workload);
// The problems of a workload, lowest first: what levels options can be set for.
std::vector<std::string> level_names(const std::string& workload);
std::vector<std::string> classifier_names();
std::string classifier_of(const MultilevelOptions& options);  // the one it names, or the default
std::unique_ptr<MultilevelWorkload> make_multilevel(const MultilevelOptions& options);

}  // namespace ebb::workloads
