// The techniques an ablation study switches on and off. A technique is one named change to how a
// workload is trained; a row of the study is a set of them on top of the baseline.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/planning.h"
#include "ebb/program.h"

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
  PlanningOptions planning;  // optimizer, precision and device count
  CompileOptions compile;
  std::int64_t accumulate = 1;
  bool fused_loss = false;
  double prune = 0.0;  // share of heads, neurons and channels gone before the first step
  std::optional<std::string> base;  // bits of frozen weights, beside which adapters are trained
  bool lora = false;                // adapters are trained instead of the weights
  BudgetRule budget = BudgetRule::none;
};

// What of a workload decides which techniques change anything about it.
struct Traits {
  bool fuses_loss = false;         // where there is a choice
  bool trains_with_adam = false;   // the lowest of its levels, where there are several
  bool takes_bf16_weights = true;  // not where levels above take differences of them
  Device::Kind device = Device::Kind::cpu;
  bool one_level = false;
  bool folder = false;       // a model from a Hugging Face folder
  bool transformer = false;  // and of one level
  bool cuts_batch = true;    // into several micro-batches, for rows that accumulate
};

// Numbers that techniques take from the command line.
struct TechniqueOptions {
  std::int64_t accumulate = 4;       // micro-batches
  std::optional<Bytes> budget = {};  // of the row "auto"; none: BudgetRule::as_blocks
};

// What a technique changes. Two techniques of one slot exclude each other.
enum class Slot : std::uint8_t {
  fusion,
  loss,
  updates,
  batch,
  recompute,
  optimizer,
  precision,
  activations,
  weights
};

struct Technique {
  std::string_view name;   // for --techniques
  std::string_view about;  // one line
  Slot slot;
  bool by_default;  // part of what ebb does unless told otherwise: the row "defaults"
  bool in_all;      // the one of its slot that the row "all" takes
  // Whether it changes anything for such a workload.
  bool (*applies)(const Traits& traits);
  void (*apply)(Setup& setup, const TechniqueOptions& options);
};
const std::vector<Technique>& techniques();

// One row of a study.
struct RowSpec {
  std::string name;  // "baseline", "blocks+adafactor", "defaults", "all", "defaults-join_loss"
  std::vector<const Technique*> techniques;
  std::vector<std::string> without = {};  // passes of "fusion" that are left out
};

// Reads "blocks,accumulate+adafactor,all". Unknown names, and two techniques of one slot, are
// errors. Techniques that do not apply to the workload are an error where they are named and left
// out of "defaults" and "all". A row that ends in "-join_relu" leaves that pass out; "passes"
// stands for a row "defaults-PASS" for each pass that the device has a use for.
std::vector<RowSpec> parse_rows(const std::string& text, const Traits& traits);

// The same, leaving out rows with a technique that does not apply.
std::vector<RowSpec> applicable_rows(const std::string& text, const Traits& traits);

Setup make_setup(const RowSpec& row, const PlanningOptions& planning, const Rates& rates,
                 const TechniqueOptions& options);

}  // namespace ebb::cli
