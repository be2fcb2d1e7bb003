#include "cli/ablate/technique.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/did_you_mean.h"
#include "cli/numbers.h"
#include "cli/verb.h"
#include "core/backend.h"

namespace ebb::cli {
namespace {

bool always(const Traits&) { return true; }
bool has_one_level(const Traits& traits) { return traits.one_level; }
bool has_logits(const Traits& traits) { return traits.fuses_loss; }
// Optimizers with less state stand in for Adam's; what trains with something else has its own rate.
bool trains_with_adam(const Traits& traits) { return traits.trains_with_adam; }
bool is_from_folder(const Traits& traits) { return traits.folder; }
bool takes_bf16_weights(const Traits& traits) { return traits.takes_bf16_weights; }
bool is_transformer(const Traits& traits) { return traits.transformer; }
bool cuts_batch(const Traits& traits) { return traits.cuts_batch; }

template <Recompute::Mode mode, std::int64_t segment = 0>
void recompute(Setup& setup, const TechniqueOptions&) {
  setup.compile.plan.recompute = {mode, segment};
}

template <Precision kind>
void precision(Setup& setup, const TechniqueOptions&) {
  setup.planning.precision = name(kind);
}

// Moves tensors to the second tier of memory: the host's for a GPU, a file of the current folder
// for the CPU. How much moves follows from the budget, which is the smallest.
template <bool state, bool activations>
void offload(Setup& setup, const TechniqueOptions&) {
  const Tier tier = backend_of(device_of(setup.planning)).second_tier();
  OffloadOptions& options = setup.compile.plan.offload;
  options.budgets[tier] = Bytes{std::int64_t{1} << 50};  // what is held is planned and shown
  options.state = state, options.weights = state && activations, options.activations = activations;
  setup.compile.offload_folder = ".";
  setup.compile.plan.recompute = {Recompute::Mode::automatic};
  setup.budget = BudgetRule::least;
}

// Masks from the first step on; magnitudes of weights decide.
void masks(Setup& setup, std::optional<double> share, std::optional<std::string> pattern) {
  setup.planning.sparsity.share = share, setup.planning.sparsity.pattern = std::move(pattern);
  setup.planning.sparsity.schedule = "constant";
}

// Adapters, with the weights frozen in these bits.
template <const char* bits>
void adapters(Setup& setup, const TechniqueOptions&) {
  setup.lora = true;
  if (*bits) setup.base = bits;
}
constexpr char whole_bits[] = "", int8_bits[] = "int8", int4_bits[] = "int4", nf4_bits[] = "nf4";

constexpr auto segments = Recompute::Mode::segment, blocks = Recompute::Mode::blocks,
               root = Recompute::Mode::sqrt, selective = Recompute::Mode::selective,
               automatic = Recompute::Mode::automatic;

// In the order tables show them.
const Technique table[] = {
    {"fusion", "neighbouring ops run as one kernel where a pass can join them", Slot::fusion, true,
     true, always,
     [](Setup& s, const TechniqueOptions&) {
       s.compile.passes = passes_without(all_pass_names(), s.planning.without);
     }},
    {"fused-loss", "the loss never holds all logits", Slot::loss, true, true, has_logits,
     [](Setup& s, const TechniqueOptions&) { s.fused_loss = true; }},
    {"early-updates", "a weight is updated as soon as its gradient exists", Slot::updates, true,
     true, always,
     [](Setup& s, const TechniqueOptions&) { s.compile.plan.updates = UpdateTiming::early; }},
    {"accumulate", "the batch is computed in parts, one after the other", Slot::batch, false, true,
     cuts_batch,
     [](Setup& s, const TechniqueOptions& options) { s.accumulate = options.accumulate; }},
    {"segment-2", "keep every second result inside a block, recompute the others", Slot::recompute,
     false, false, always, recompute<segments, 2>},
    {"segment-4", "keep every fourth result inside a block, recompute the others", Slot::recompute,
     false, false, always, recompute<segments, 4>},
    {"segment-8", "keep every eighth result inside a block, recompute the others", Slot::recompute,
     false, false, always, recompute<segments, 8>},
    {"segment-all", "recompute every result inside a block, one op at a time", Slot::recompute,
     false, false, always, recompute<segments, 0>},
    {"selective", "recompute the results of cheap ops", Slot::recompute, false, false, always,
     recompute<selective>},
    {"blocks", "keep the inputs of blocks, recompute everything inside them", Slot::recompute,
     false, false, always, recompute<blocks>},
    {"sqrt", "keep the inputs of groups of √n blocks, recompute everything inside them",
     Slot::recompute, false, false, always, recompute<root>},
    {"auto", "recompute whatever takes the least time within the memory of the row \"blocks\"",
     Slot::recompute, false, true, always,
     [](Setup& s, const TechniqueOptions& options) {
       s.compile.plan.recompute = {automatic};
       s.compile.plan.budget = options.budget;
       if (!options.budget) s.budget = BudgetRule::as_blocks;
     }},
    {"least", "recompute what the smallest budget requires", Slot::recompute, false, false, always,
     [](Setup& s, const TechniqueOptions&) {
       s.compile.plan.recompute = {automatic};
       s.budget = BudgetRule::least;
     }},
    {"offload-state", "optimizer state in the second tier of memory, within the smallest budget",
     Slot::recompute, false, false, has_one_level, offload<true, false>},
    {"offload-activations",
     "results of forward in the second tier of memory, within the smallest budget", Slot::recompute,
     false, false, has_one_level, offload<false, true>},
    {"offload",
     "weights, state and results in the second tier of memory, within the smallest budget",
     Slot::recompute, false, false, has_one_level, offload<true, true>},
    {"adamw8bit", "AdamW with a byte for each moment", Slot::optimizer, false, false,
     trains_with_adam,
     [](Setup& s, const TechniqueOptions&) { s.planning.optimizer = "adamw8bit"; }},
    {"adafactor", "second moments factored into rows and columns", Slot::optimizer, false, true,
     trains_with_adam,
     [](Setup& s, const TechniqueOptions&) { s.planning.optimizer = "adafactor"; }},
    {"lomo", "plain gradient descent without any state", Slot::optimizer, false, false,
     trains_with_adam, [](Setup& s, const TechniqueOptions&) { s.planning.optimizer = "lomo"; }},
    {"fp16", "products and activations in float16, the loss scaled", Slot::precision, false, false,
     always, precision<Precision::mixed_fp16>},
    {"bf16", "products and activations in bfloat16", Slot::precision, false, true, always,
     precision<Precision::mixed_bf16>},
    {"pure-bf16", "weights, gradients and moments in bfloat16 too, with stochastic rounding",
     Slot::precision, false, true, takes_bf16_weights, precision<Precision::pure_bf16>},
    {"split-bf16", "weights in bfloat16, with their lower 16 bits stored separately",
     Slot::precision, false, false, takes_bf16_weights, precision<Precision::split_bf16>},
    {"fp8", "like split-bf16, with 8-bit factors in the products inside blocks", Slot::precision,
     false, false, is_transformer, precision<Precision::fp8>},
    {"activations-8", "what backward reads of forward is kept in 8 bits", Slot::activations, false,
     false, is_transformer,
     [](Setup& s, const TechniqueOptions&) { s.planning.activation_bits = 8; }},
    {"prune", "30 % of heads, neurons or channels removed, those with the smallest weights",
     Slot::weights, false, false, has_one_level,
     [](Setup& s, const TechniqueOptions&) { s.prune = 0.3; }},
    {"sparse", "half of the weights of products set to zero by one-bit masks", Slot::weights, false,
     false, has_one_level, [](Setup& s, const TechniqueOptions&) { masks(s, 0.5, {}); }},
    {"sparse-2:4", "two of every four neighbouring weights set to zero by masks", Slot::weights,
     false, false, has_one_level, [](Setup& s, const TechniqueOptions&) { masks(s, {}, "2:4"); }},
    {"lora", "low-rank adapters trained, all other weights frozen", Slot::weights, false, false,
     is_from_folder, adapters<whole_bits>},
    {"lora-int8", "like lora, with the frozen weights in 8 bits", Slot::weights, false, false,
     is_from_folder, adapters<int8_bits>},
    {"lora-int4", "like lora, with the frozen weights in 4 bits", Slot::weights, false, false,
     is_from_folder, adapters<int4_bits>},
    {"lora-nf4", "like lora, with the frozen weights in NF4", Slot::weights, false, false,
     is_from_folder, adapters<nf4_bits>},
};

const Technique& technique_named(std::string_view name) {
  std::string names;
  std::vector<std::string> known{"defaults", "all", "passes"};
  for (const Technique& t : table) {
    if (t.name == name) return t;
    names += fmt::format("{}, ", t.name);
    known.emplace_back(t.name);
  }
  throw UsageError(fmt::format(
      "there is no technique \"{}\"; there are {}defaults, all and passes, and any of them joined "
      "by +{}",
      shortened(std::string(name)), names, did_you_mean(name, known)));
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

RowSpec gathered(const std::string& name, const Traits& traits, bool Technique::*chosen) {
  RowSpec row{name, {}};
  for (const Technique& t : table)
    if (t.*chosen && t.applies(traits)) row.techniques.push_back(&t);
  return row;
}

bool useful(const Pass& pass, const Traits& traits) {
  return !pass.required && (!pass.only_on || *pass.only_on == traits.device);
}

// Takes "-PASS" off the end of a row's text; names of techniques have no underscores.
std::vector<std::string> take_passes(std::string& text) {
  std::vector<std::string> names;
  for (std::size_t at;
       (at = text.rfind('-')) != std::string::npos && text.find('_', at) != std::string::npos;) {
    names.insert(names.begin(), text.substr(at + 1));
    text.resize(at);
  }
  return names;
}

RowSpec parse_row(std::string text, const Traits& traits);

// A row with some passes of its fusion left out.
RowSpec parse_row_without(std::string text, std::vector<std::string> names, const Traits& traits) {
  RowSpec row = parse_row(text, traits);
  for (const Pass& pass : all_passes())
    if (std::ranges::find(names, pass.name) != names.end() && !useful(pass, traits))
      throw UsageError(fmt::format(
          "a row cannot leave out {}, which {}", pass.name,
          pass.required ? "no program can be made without" : "does nothing on this device"));
  try {
    passes_without({}, names);
  } catch (const ValueError& error) {
    throw UsageError(error.what());
  }
  if (std::ranges::none_of(row.techniques,
                           [](const Technique* t) { return t->slot == Slot::fusion; }))
    throw UsageError(
        fmt::format("the row {} runs no passes that could be left out: add fusion to it", text));
  for (const std::string& name : names) row.name += "-" + name;
  row.without = std::move(names);
  return row;
}

RowSpec parse_row(std::string text, const Traits& traits) {
  if (std::vector<std::string> names = take_passes(text); !names.empty())
    return parse_row_without(std::move(text), std::move(names), traits);
  if (text == "baseline") return {text, {}};
  if (text == "defaults") return gathered(text, traits, &Technique::by_default);
  if (text == "all") return gathered(text, traits, &Technique::in_all);
  RowSpec row{text, {}};
  for (const std::string& name : split(text, '+')) {
    const Technique& t = technique_named(name);
    if (!t.applies(traits))
      throw UsageError(
          fmt::format("{} changes nothing about this workload, or is not possible with it", name));
    for (const Technique* other : row.techniques)
      if (other->slot == t.slot)
        throw UsageError(fmt::format("{} and {} exclude each other", other->name, t.name));
    row.techniques.push_back(&t);
  }
  return row;
}

Setup baseline_setup(const PlanningOptions& planning, const Rates& rates) {
  Setup setup;
  setup.planning = planning;
  setup.compile = device_options(planning, rates);
  setup.compile.passes = required_passes();
  setup.compile.plan.updates = UpdateTiming::last;
  setup.compile.plan.recompute = {Recompute::Mode::none};
  return setup;
}

}  // namespace

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> all(std::begin(table), std::end(table));
  return all;
}

std::vector<RowSpec> parse_rows(const std::string& text, const Traits& traits) {
  std::vector<RowSpec> rows{{"baseline", {}}};
  std::vector<std::string> names;
  for (const std::string& name : split(text, ',')) {
    if (name != "passes") names.push_back(name);
    for (const Pass& pass : all_passes())
      if (name == "passes" && useful(pass, traits))
        names.push_back(fmt::format("defaults-{}", pass.name));
  }
  for (const std::string& name : names)
    if (std::none_of(rows.begin(), rows.end(), [&](const RowSpec& r) { return r.name == name; }))
      rows.push_back(parse_row(name, traits));
  return rows;
}

std::vector<RowSpec> applicable_rows(const std::string& text, const Traits& traits) {
  std::string kept;
  for (const std::string& row : split(text, ',')) {
    const std::vector<std::string> names = split(row, '+');
    if (row == "defaults" || row == "all" ||
        std::all_of(names.begin(), names.end(),
                    [&](const std::string& n) { return technique_named(n).applies(traits); }))
      kept += (kept.empty() ? "" : ",") + row;
  }
  return parse_rows(kept, traits);
}

Setup make_setup(const RowSpec& row, const PlanningOptions& planning, const Rates& rates,
                 const TechniqueOptions& options) {
  Setup setup = baseline_setup(planning, rates);
  for (const Technique* technique : row.techniques) technique->apply(setup, options);
  setup.compile.passes = passes_without(*setup.compile.passes, row.without);
  return setup;
}

}  // namespace ebb::cli
