#include "cli/ablate/technique.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/verb.h"

namespace ebb::cli {
namespace {

using workloads::Workload;

bool always(const Workload&) { return true; }
bool has_logits(const Workload& task) { return task.fuses_loss; }
// Optimizers with less state stand in for Adam's; what trains with something else has its own rate.
bool trains_with_adam(const Workload& task) {
  return task.optimizer().rule().name().starts_with("adam");
}

template <Recompute::Mode mode, std::int64_t segment = 0>
void recompute(Setup& setup, const TechniqueOptions&) {
  setup.train.compile.plan.recompute = {mode, segment};
}

constexpr auto segments = Recompute::Mode::segment, blocks = Recompute::Mode::blocks,
               root = Recompute::Mode::sqrt, selective = Recompute::Mode::selective,
               automatic = Recompute::Mode::automatic;

// In the order tables show them.
const Technique table[] = {
    {"fusion", "elementwise ops run as one", Slot::fusion, true, true, always,
     [](Setup& s, const TechniqueOptions&) { s.train.compile.fuse = true; }},
    {"fused-loss", "the loss never holds all logits", Slot::loss, true, true, has_logits,
     [](Setup& s, const TechniqueOptions&) { s.workload.fused_loss = true; }},
    {"early-updates", "a weight is updated as soon as its gradient exists", Slot::updates, true,
     true, always,
     [](Setup& s, const TechniqueOptions&) { s.train.compile.plan.updates = UpdateTiming::early; }},
    {"accumulate", "the batch is computed in parts, one after the other", Slot::batch, false, true,
     always,
     [](Setup& s, const TechniqueOptions& options) { s.train.accumulate = options.accumulate; }},
    {"segment-2", "recompute all but one in 2 nodes of a block", Slot::recompute, false, false,
     always, recompute<segments, 2>},
    {"segment-4", "recompute all but one in 4 nodes of a block", Slot::recompute, false, false,
     always, recompute<segments, 4>},
    {"segment-8", "recompute all but one in 8 nodes of a block", Slot::recompute, false, false,
     always, recompute<segments, 8>},
    {"segment-all", "recompute all nodes of a block", Slot::recompute, false, false, always,
     recompute<segments, 0>},
    {"selective", "recompute what cheap ops make", Slot::recompute, false, false, always,
     recompute<selective>},
    {"blocks", "recompute all inside every block", Slot::recompute, false, false, always,
     recompute<blocks>},
    {"sqrt", "recompute all inside groups of √n blocks", Slot::recompute, false, false, always,
     recompute<root>},
    {"auto", "recompute what costs least time, in no more memory than \"blocks\" takes",
     Slot::recompute, false, true, always,
     [](Setup& s, const TechniqueOptions& options) {
       s.train.compile.plan.recompute = {automatic};
       s.train.compile.plan.budget = options.budget;
       if (!options.budget) s.budget = BudgetRule::as_blocks;
     }},
    {"least", "recompute whatever the smallest budget asks for", Slot::recompute, false, false,
     always,
     [](Setup& s, const TechniqueOptions&) {
       s.train.compile.plan.recompute = {automatic};
       s.budget = BudgetRule::least;
     }},
    {"adamw8bit", "AdamW with a byte for each moment", Slot::optimizer, false, false,
     trains_with_adam, [](Setup& s, const TechniqueOptions&) { s.optimizer = "adamw8bit"; }},
    {"adafactor", "mean squares of rows and columns in place of Adam's moments", Slot::optimizer,
     false, true, trains_with_adam,
     [](Setup& s, const TechniqueOptions&) { s.optimizer = "adafactor"; }},
    {"lomo", "plain gradient descent without any state", Slot::optimizer, false, false,
     trains_with_adam, [](Setup& s, const TechniqueOptions&) { s.optimizer = "lomo"; }},
};

const Technique& technique_named(std::string_view name) {
  std::string names;
  for (const Technique& t : table) {
    if (t.name == name) return t;
    names += fmt::format("{}, ", t.name);
  }
  throw UsageError(fmt::format(
      "there is no technique \"{}\"; there are {}defaults and all, and any of them joined by +",
      name, names));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

RowSpec gathered(const std::string& name, const Workload& task, bool Technique::*chosen) {
  RowSpec row{name, {}};
  for (const Technique& t : table)
    if (t.*chosen && t.applies(task)) row.techniques.push_back(&t);
  return row;
}

RowSpec parse_row(const std::string& text, const Workload& task) {
  if (text == "baseline") return {text, {}};
  if (text == "defaults") return gathered(text, task, &Technique::by_default);
  if (text == "all") return gathered(text, task, &Technique::in_all);
  RowSpec row{text, {}};
  for (const std::string& name : split(text, '+')) {
    const Technique& t = technique_named(name);
    if (!t.applies(task))
      throw UsageError(fmt::format("{} changes nothing about this workload", name));
    for (const Technique* other : row.techniques)
      if (other->slot == t.slot)
        throw UsageError(fmt::format("{} and {} exclude each other", other->name, t.name));
    row.techniques.push_back(&t);
  }
  return row;
}

}  // namespace

Setup baseline_setup(const workloads::Options& workload) {
  Setup setup{workload, {}, {}, BudgetRule::none};
  setup.workload.fused_loss = false;
  setup.train.compile.fuse = false;
  setup.train.compile.seed = workload.seed;
  setup.train.compile.plan.updates = UpdateTiming::last;
  setup.train.compile.plan.recompute = {Recompute::Mode::none};
  return setup;
}

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> all(std::begin(table), std::end(table));
  return all;
}

std::vector<RowSpec> parse_rows(const std::string& text, const Workload& task) {
  std::vector<RowSpec> rows{{"baseline", {}}};
  for (const std::string& name : split(text, ','))
    if (std::none_of(rows.begin(), rows.end(), [&](const RowSpec& r) { return r.name == name; }))
      rows.push_back(parse_row(name, task));
  return rows;
}

std::vector<RowSpec> applicable_rows(const std::string& text, const Workload& task) {
  std::string kept;
  for (const std::string& row : split(text, ',')) {
    const std::vector<std::string> names = split(row, '+');
    if (row == "defaults" || row == "all" ||
        std::all_of(names.begin(), names.end(),
                    [&](const std::string& n) { return technique_named(n).applies(task); }))
      kept += (kept.empty() ? "" : ",") + row;
  }
  return parse_rows(kept, task);
}

Setup make_setup(const RowSpec& row, const workloads::Options& workload,
                 const TechniqueOptions& options) {
  Setup setup = baseline_setup(workload);
  for (const Technique* technique : row.techniques) technique->apply(setup, options);
  return setup;
}

}  // namespace ebb::cli
