// A training run as a value: what is trained, on what, how, and within what. It is made from the
// command line in one place, written into checkpoints, and compared when a run is resumed.
//
// Fields have the names of the command line's options. `visit` is the one list of them: writing,
// reading and comparing all go through it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::workloads {

// Whether a run that is resumed may differ in a field.
enum class OnResume : std::uint8_t {
  never,    // another value is another run
  by_name,  // it decides what is computed: it stays, unless its change is asked for by name
  free,     // it decides where and within what, or is told by another field too
};

// One level of a multilevel workload.
struct LevelSpec {
  std::optional<std::string> method;
  std::optional<std::int64_t> unroll, warmup, iterations, accumulate;
  std::optional<double> alpha, lr, clip;
  std::optional<std::string> optimizer;
  std::string rule;  // Optimizer::description()
  std::optional<std::string> precision, recompute, budget;

  bool operator==(const LevelSpec&) const = default;

  // Calls field(name, value, OnResume) for every field of a LevelSpec or a const one.
  template <class Self, class Field>
  static void visit(Self& s, Field&& field) {
    field("method", s.method, OnResume::by_name);
    field("unroll", s.unroll, OnResume::by_name);
    field("warmup", s.warmup, OnResume::by_name);
    field("iterations", s.iterations, OnResume::by_name);
    field("accumulate", s.accumulate, OnResume::by_name);
    field("alpha", s.alpha, OnResume::by_name);
    field("lr", s.lr, OnResume::by_name);
    field("clip", s.clip, OnResume::by_name);
    field("optimizer", s.optimizer, OnResume::free);
    field("optimizer.rule", s.rule, OnResume::by_name);
    field("precision", s.precision, OnResume::by_name);
    field("recompute", s.recompute, OnResume::free);
    field("budget", s.budget, OnResume::free);
  }
};

struct TrainSpec {
  // What: sizes that a workload does not have stay empty.
  std::string workload;
  std::optional<std::int64_t> layers, width, hidden, heads, key_value_heads, vocabulary, sequence,
      classes, depth;
  std::optional<double> dropout;
  std::optional<std::string> layout, classifier;  // classifier: of workloads of several levels
  // On what. The folder may have moved: checkpoints hold a fingerprint of the data itself.
  std::optional<std::filesystem::path> data;
  std::optional<std::int64_t> batch, meta;
  std::optional<double> imbalance;
  std::uint64_t seed = 0;
  // How.
  std::optional<std::string> optimizer;  // none: the workload's own
  std::string rule;                      // Optimizer::description()
  std::optional<double> lr, clip;
  std::string schedule = "constant", clip_by = "this-norm", accumulate = "1";
  std::int64_t warmup = 0, steps = 0;
  std::string precision = "fp32";
  std::optional<std::string> rounding, loss_walks;
  std::optional<std::int64_t> master_bits;
  bool tf32 = false;
  // Within what.
  std::string device = "cpu";
  std::optional<std::string> budget, recompute;
  std::optional<std::int64_t> lanes;
  bool whole_process = false, overcommit = false, huge_pages = false, lock_memory = false,
       pin_threads = false;
  std::optional<std::string> without;  // passes that are left out, joined by commas
  std::int64_t eval_batches = 0;
  std::string on_nan = "stop";
  // What is kept on the way.
  std::optional<std::int64_t> checkpoint_every;
  std::int64_t keep = 1;
  std::optional<std::filesystem::path> log;

  std::map<std::string, LevelSpec> levels;  // by the names of problems

  bool operator==(const TrainSpec&) const = default;

  // The fields of the whole; those of levels are LevelSpec's.
  template <class Self, class Field>
  static void visit(Self& s, Field&& field) {
    field("workload", s.workload, OnResume::never);
    field("layers", s.layers, OnResume::by_name);
    field("width", s.width, OnResume::by_name);
    field("hidden", s.hidden, OnResume::by_name);
    field("heads", s.heads, OnResume::by_name);
    field("kv-heads", s.key_value_heads, OnResume::by_name);
    field("vocabulary", s.vocabulary, OnResume::by_name);
    field("sequence", s.sequence, OnResume::by_name);
    field("classes", s.classes, OnResume::by_name);
    field("depth", s.depth, OnResume::by_name);
    field("dropout", s.dropout, OnResume::by_name);
    field("layout", s.layout, OnResume::by_name);
    field("classifier", s.classifier, OnResume::by_name);
    field("data", s.data, OnResume::free);
    field("batch", s.batch, OnResume::by_name);
    field("meta", s.meta, OnResume::by_name);
    field("imbalance", s.imbalance, OnResume::by_name);
    field("seed", s.seed, OnResume::never);
    field("optimizer", s.optimizer, OnResume::free);
    field("optimizer.rule", s.rule, OnResume::by_name);
    field("lr", s.lr, OnResume::by_name);
    field("clip", s.clip, OnResume::by_name);
    field("schedule", s.schedule, OnResume::by_name);
    field("clip-by", s.clip_by, OnResume::by_name);
    field("accumulate", s.accumulate, OnResume::by_name);
    field("warmup", s.warmup, OnResume::by_name);
    field("steps", s.steps, s.schedule == "constant" ? OnResume::free : OnResume::by_name);
    field("precision", s.precision, OnResume::by_name);
    field("rounding", s.rounding, OnResume::by_name);
    field("loss-walks", s.loss_walks, OnResume::free);
    field("master-bits", s.master_bits, OnResume::by_name);
    field("tf32", s.tf32, OnResume::by_name);
    field("device", s.device, OnResume::free);
    field("budget", s.budget, OnResume::free);
    field("recompute", s.recompute, OnResume::free);
    field("lanes", s.lanes, OnResume::free);
    field("whole-process", s.whole_process, OnResume::free);
    field("overcommit", s.overcommit, OnResume::free);
    field("without", s.without, OnResume::by_name);
    field("huge-pages", s.huge_pages, OnResume::free);
    field("lock-memory", s.lock_memory, OnResume::free);
    field("pin-threads", s.pin_threads, OnResume::free);
    field("eval-batches", s.eval_batches, OnResume::free);
    field("on-nan", s.on_nan, OnResume::free);
    field("checkpoint-every", s.checkpoint_every, OnResume::free);
    field("keep", s.keep, OnResume::free);
    field("log", s.log, OnResume::free);
  }
};

// One JSON object, and back. A field that is missing, unknown or of another kind is an error that
// names it.
std::string to_json(const TrainSpec& spec);
TrainSpec train_spec_from_json(std::string_view text);

// Something that two runs do not have in common.
struct Difference {
  std::string option;  // that changes it, without dashes: "lr", "classifier.lr"
  std::string saved, given;
  OnResume on_resume = OnResume::by_name;
};

// What `given` has otherwise than `saved` of the fields that must stay the same.
std::vector<Difference> differences(const TrainSpec& saved, const TrainSpec& given);

// The fields of `saved`, but those of `given` that `wanted` names.
TrainSpec overlaid(const TrainSpec& saved, const TrainSpec& given,
                   const std::function<bool(const std::string& option)>& wanted);

// The options that `differences` of two such runs can name.
std::vector<std::string> changeable_options(const TrainSpec& spec);

}  // namespace ebb::workloads
