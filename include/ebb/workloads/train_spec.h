// A training run as a value: what is trained, on what, how, and within what. The command line and
// configuration files fill it in, checkpoints hold it, and it is compared when a run is resumed.
//
// `visit` is the one list of its fields, by the names of the command line's options: writing,
// reading and comparing all go through it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/machine.h"
#include "ebb/workloads/multilevel.h"

namespace ebb {
class Communicator;
}

namespace ebb::workloads {

// Masks of weights (ebb/train/sparse_training.h).
struct SparsityOptions {
  std::optional<double> share;
  std::optional<std::string> pattern, method, schedule;
  std::optional<std::int64_t> from, until, every;
  std::optional<std::filesystem::path> masks;  // a folder with a checkpoint

  bool any() const { return share || pattern || masks; }
};

// Structured pruning on the way (ebb/prune/gradual.h).
struct PruneOptions {
  std::optional<double> share;
  std::optional<std::string> schedule;
  std::optional<std::int64_t> from, until, every, multiple;
  std::vector<std::string> structure;  // heads, neurons, channels; empty: all that the family has
};

// How a step is computed, and the limits that it is planned within.
struct PlanningOptions {
  std::optional<std::string> budget, recompute;
  bool whole_process = false;
  // The sizes of other tiers of memory, what may be kept in them, and the folder of the disk tier's
  // file.
  std::optional<std::string> host_budget, disk_budget;
  std::vector<std::string> offload;
  std::optional<std::filesystem::path> offload_folder;
  std::string device = "cpu";  // or cuda, cuda:1, or a file that describes one
  MachineOptions machine;
  std::optional<std::string> optimizer;  // none: the workload's own
  std::string accumulate = "1";          // or auto
  std::optional<std::int64_t> leaves;    // of a reproducible sum over the batch (train/ranks.h)
  std::string shard = "0";               // to 3, or auto: what ranks divide (train/ranks.h)
  std::string reduce = "exact";          // or fast: who orders sums over ranks (Reduce)
  std::string precision = "fp32";
  std::optional<std::string> rounding;    // of parameters in pure-bf16
  std::optional<int> master_bits;         // beside those in split-bf16
  std::optional<int> activation_bits;     // from forward to backward; none: their own dtype
  bool tf32 = false;                      // products of float32 on a GPU
  std::optional<int> lanes;               // of a GPU
  std::optional<std::string> loss_walks;  // over logits on a GPU: auto, 1 or 2
  std::vector<std::string> without;       // passes that are left out
  std::optional<double> clip;
  std::string clip_by = "this-norm";
  std::string on_nan = "stop";  // or skip, ignore
  SparsityOptions sparsity;
  PruneOptions prune;
  // Not an option, but a property of the verb: nothing is run, so a GPU that is described by a file
  // need not be here.
  bool only_plans = false;
  bool tries_budgets = false;  // of a verb that plans for budgets of its own choice
  // The ranks of the run, which its launcher decides, or those that are planned for.
  int ranks = 1, rank = 0;
  int gpu = 0;  // of several ranks, the one that this rank uses
  std::shared_ptr<Communicator> communicator = nullptr;

  // Whether anything asks the planner to choose by time.
  bool needs_rates() const {
    return budget || recompute || device != "cpu" || accumulate == "auto" || shard == "auto";
  }
};

// Whether a run that is resumed may differ in a field.
enum class OnResume : std::uint8_t {
  never,    // another value is another run
  by_name,  // it decides what is computed: it stays, unless the change is asked for by name
  free,     // it decides where and within what limits, or another field records it too
};

struct TrainSpec {
  MultilevelOptions task;  // of workloads of one level, `task.common` alone
  PlanningOptions planning;
  std::optional<double> rate;
  std::string schedule = "constant";
  std::int64_t steps = 100, warmup = 0, eval_batches = 8;
  // Evaluation during the run, every `eval_every` steps. The run ends after `patience` evaluations
  // in a row without a lower test loss.
  std::optional<std::int64_t> eval_every, patience;
  bool overcommit = false;  // start with a plan larger than the memory that is available
  // Checkpoints that are written during the run.
  std::optional<std::int64_t> checkpoint_every;
  std::int64_t keep = 1;   // checkpoints
  bool keep_best = false;  // also the one of the lowest test loss
  std::optional<std::filesystem::path> log;
  // Optimizer::description() of the whole run and of each level, set once the optimizers are made.
  std::string rule;
  std::map<std::string, std::string> level_rules;

  // Calls field(name, value, OnResume) for every field of a TrainSpec, const or not. The fields of
  // levels are visited by visit_level.
  template <class Self, class Field>
  static void visit(Self& s, Field&& field) {
    auto& common = s.task.common;
    auto& planning = s.planning;
    // What is trained, and on what. The data's folder may have moved: checkpoints hold a
    // fingerprint of the data itself.
    field("workload", common.name, OnResume::never);
    field("model", common.model, OnResume::free);  // a fingerprint of its files is kept too
    field("pack", common.pack, OnResume::by_name);
    field("lora", common.lora, OnResume::by_name);
    field("lora-alpha", common.lora_alpha, OnResume::by_name);
    field("lora-dropout", common.lora_dropout, OnResume::by_name);
    field("lora-modules", common.lora_modules, OnResume::by_name);
    field("adapter", common.adapter, OnResume::free);  // checkpoints hold the adapters
    field("base", common.base, OnResume::never);
    field("merge", common.merge, OnResume::free);
    field("layers", common.layers, OnResume::by_name);
    field("width", common.width, OnResume::by_name);
    field("hidden", common.hidden, OnResume::by_name);
    field("heads", common.heads, OnResume::by_name);
    field("kv-heads", common.key_value_heads, OnResume::by_name);
    field("vocabulary", common.vocabulary, OnResume::by_name);
    field("sequence", common.sequence, OnResume::by_name);
    field("classes", common.classes, OnResume::by_name);
    field("depth", common.depth, OnResume::by_name);
    field("dropout", common.dropout, OnResume::by_name);
    field("layout", common.layout, OnResume::by_name);
    field("classifier", s.task.classifier, OnResume::by_name);
    field("data", common.data, OnResume::free);
    field("batch", common.batch, OnResume::by_name);
    field("meta", s.task.meta, OnResume::by_name);
    field("imbalance", s.task.imbalance, OnResume::by_name);
    field("unweighted", s.task.unweighted, OnResume::never);
    field("tokens", common.tokens, OnResume::by_name);
    field("labels-from", common.labels_from, OnResume::by_name);
    field("image-size", common.image_size, OnResume::by_name);
    field("seed", common.seed, OnResume::never);
    // How.
    field("optimizer", planning.optimizer, OnResume::free);
    field("optimizer.rule", s.rule, OnResume::by_name);
    field("lr", s.rate, OnResume::by_name);
    field("clip", planning.clip, OnResume::by_name);
    field("schedule", s.schedule, OnResume::by_name);
    field("clip-by", planning.clip_by, OnResume::by_name);
    field("accumulate", planning.accumulate, OnResume::by_name);
    field("leaves", planning.leaves, OnResume::by_name);
    field("reduce", planning.reduce, OnResume::by_name);
    field("warmup", s.warmup, OnResume::by_name);
    field("steps", s.steps, s.schedule == "constant" ? OnResume::free : OnResume::by_name);
    field("precision", planning.precision, OnResume::by_name);
    field("rounding", planning.rounding, OnResume::by_name);
    field("loss-walks", planning.loss_walks, OnResume::free);
    field("master-bits", planning.master_bits, OnResume::by_name);
    field("activation-bits", planning.activation_bits, OnResume::by_name);
    field("tf32", planning.tf32, OnResume::by_name);
    field("sparsity", planning.sparsity.share, OnResume::by_name);
    field("sparsity-pattern", planning.sparsity.pattern, OnResume::by_name);
    field("sparsity-method", planning.sparsity.method, OnResume::by_name);
    field("sparsity-schedule", planning.sparsity.schedule, OnResume::by_name);
    field("sparsity-from", planning.sparsity.from, OnResume::by_name);
    field("sparsity-until", planning.sparsity.until, OnResume::by_name);
    field("sparsity-every", planning.sparsity.every, OnResume::by_name);
    field("sparsity-masks", planning.sparsity.masks, OnResume::by_name);
    field("prune", planning.prune.share, OnResume::by_name);
    field("prune-schedule", planning.prune.schedule, OnResume::by_name);
    field("prune-from", planning.prune.from, OnResume::by_name);
    field("prune-until", planning.prune.until, OnResume::by_name);
    field("prune-every", planning.prune.every, OnResume::by_name);
    field("prune-structure", planning.prune.structure, OnResume::never);
    field("prune-multiple", planning.prune.multiple, OnResume::never);
    // Within what.
    field("device", planning.device, OnResume::free);
    field("budget", planning.budget, OnResume::free);
    field("host-budget", planning.host_budget, OnResume::free);
    field("disk-budget", planning.disk_budget, OnResume::free);
    field("offload", planning.offload, OnResume::free);
    field("offload-folder", planning.offload_folder, OnResume::free);
    field("recompute", planning.recompute, OnResume::free);
    field("lanes", planning.lanes, OnResume::free);
    field("shard", planning.shard, OnResume::free);
    field("whole-process", planning.whole_process, OnResume::free);
    field("overcommit", s.overcommit, OnResume::free);
    field("without", planning.without, OnResume::by_name);
    field("huge-pages", planning.machine.huge_pages, OnResume::free);
    field("lock-memory", planning.machine.lock_memory, OnResume::free);
    field("pin-threads", planning.machine.pin_threads, OnResume::free);
    field("eval-batches", s.eval_batches, OnResume::free);
    field("eval-every", s.eval_every, OnResume::free);
    field("patience", s.patience, OnResume::free);
    field("on-nan", planning.on_nan, OnResume::free);
    field("checkpoint-every", s.checkpoint_every, OnResume::free);
    field("keep", s.keep, OnResume::free);
    field("keep-best", s.keep_best, OnResume::free);
    field("log", s.log, OnResume::free);
  }

  // The same for a LevelOptions and the rule of the level's optimizer.
  template <class Level, class Rule, class Field>
  static void visit_level(Level& l, Rule& rule, Field&& field) {
    field("method", l.method, OnResume::by_name);
    field("unroll", l.unroll, OnResume::by_name);
    field("warmup", l.warmup, OnResume::by_name);
    field("iterations", l.iterations, OnResume::by_name);
    field("accumulate", l.accumulate, OnResume::by_name);
    field("alpha", l.alpha, OnResume::by_name);
    field("lr", l.rate, OnResume::by_name);
    field("clip", l.clip, OnResume::by_name);
    field("optimizer", l.optimizer, OnResume::free);
    field("optimizer.rule", rule, OnResume::by_name);
    field("precision", l.precision, OnResume::by_name);
    field("recompute", l.recompute, OnResume::free);
    field("budget", l.budget, OnResume::free);
  }
};
bool operator==(const TrainSpec& a, const TrainSpec& b);  // every field that is visited

// One JSON object, and back; levels are those of the workload. A field that is missing, unknown,
// repeated or of another kind is an error that names it.
std::string to_json(const TrainSpec& spec);
TrainSpec train_spec_from_json(std::string_view text);

// A field in which two runs differ.
struct Difference {
  std::string option;  // that changes it, without dashes: "lr", "classifier.lr"
  std::string saved, given;
  OnResume on_resume = OnResume::by_name;
};

// The fields that must stay the same but differ in `given` from `saved`.
std::vector<Difference> differences(const TrainSpec& saved, const TrainSpec& given);

// `saved`, with the fields that `wanted` names taken from `given`.
TrainSpec overlaid(const TrainSpec& saved, const TrainSpec& given,
                   const std::function<bool(const std::string& option)>& wanted);

// The options that `differences` of two such runs can name.
std::vector<std::string> changeable_options(const TrainSpec& spec);

}  // namespace ebb::workloads
