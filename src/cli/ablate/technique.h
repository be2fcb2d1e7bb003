// The techniques an ablation study switches on and off. A technique is one named change to how a
// workload's training step is made; a row of the study is a set of them on top of the baseline.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/train/train_step.h"
#include "ebb/workloads/workload.h"

namespace ebb::cli {

// How a row with automatic recomputation gets its budget, once its graph is known.
enum class BudgetRule : std::uint8_t {
  none,
  as_blocks,  // what recomputing every block would take: the same bytes for less time
  least,      // the smallest that can be kept
};

// All that a technique may change. The baseline is what an eager framework does: buffers are free
// after their last reader, but every op runs by itself, the loss has all its logits, and all
// gradients exist before the first update.
struct Setup {
  workloads::Options workload;
  std::optional<std::string> optimizer;  // by name; none: the workload's own
  TrainOptions train;
  BudgetRule budget = BudgetRule::none;
};
Setup baseline_setup(const workloads::Options& workload);

// Numbers that techniques take from the command line.
struct TechniqueOptions {
  std::int64_t accumulate = 4;       // micro-batches
  std::optional<Bytes> budget = {};  // of the row "auto"; none: BudgetRule::as_blocks
};

// What a technique changes. Two techniques of one slot exclude each other.
enum class Slot : std::uint8_t { fusion, loss, updates, batch, recompute, optimizer, precision };

struct Technique {
  std::string_view name;   // for --techniques
  std::string_view about;  // one line
  Slot slot;
  bool by_default;  // part of what ebb does unless told otherwise: the row "defaults"
  bool in_all;      // the one of its slot that the row "all" takes
  // Whether it changes anything for this workload.
  bool (*applies)(const workloads::Workload& task);
  void (*apply)(Setup& setup, const TechniqueOptions& options);
};
const std::vector<Technique>& techniques();

// One row of a study.
struct RowSpec {
  std::string name;  // "baseline", "blocks+adafactor", "defaults", "all"
  std::vector<const Technique*> techniques;
};

// Reads "blocks,accumulate+adafactor,all". Unknown names, and two techniques of one slot, are
// errors. Techniques that do not apply to the workload are an error where they are named and left
// out of "defaults" and "all".
std::vector<RowSpec> parse_rows(const std::string& text, const workloads::Workload& task);

// The same, leaving out rows with a technique that does not apply.
std::vector<RowSpec> applicable_rows(const std::string& text, const workloads::Workload& task);

Setup make_setup(const RowSpec& row, const workloads::Options& workload,
                 const TechniqueOptions& options);

}  // namespace ebb::cli
