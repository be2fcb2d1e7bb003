#include "cli/pruning.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/member_of.h"
#include "cli/numbers.h"
#include "cli/planning.h"
#include "cli/verb.h"
#include "ebb/data/loader.h"
#include "ebb/error.h"
#include "ops/fp8/fp8.h"

namespace ebb::cli {
namespace {

constexpr const char* group = "Pruning";

using workloads::PruneOptions;

prune::StructuredOptions what_goes(const PruneOptions& o, const nn::ModuleBase& model) {
  prune::StructuredOptions result = prune::usual_structure(model);
  result.multiple = o.multiple.value_or(1);
  if (o.structure.empty()) return result;
  result.kinds.clear();
  for (const prune::Kind kind : {prune::Kind::heads, prune::Kind::neurons, prune::Kind::channels})
    for (const std::string& named : o.structure)
      if (named == prune::name(kind)) result.kinds.insert(kind);
  return result;
}

void refuse_others(const PlanningOptions& planning) {
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) throw UsageError(fmt::format("--prune and {}: {}", option, why));
  };
  refuse(planning.sparsity.any(), "--sparsity",
         "masks of single weights cannot be cut: prune first, then train with masks");
  refuse(planning.ranks > 1 || planning.leaves.has_value(), "--leaves",
         "pruning during training needs one rank, without --leaves");
  refuse(planning.host_budget || planning.disk_budget || !planning.offload.empty(), "offloading",
         "state in other tiers of memory cannot be cut");
  refuse(device_of(planning).kind != Device::Kind::cpu, "a GPU",
         "pruning during training runs on the CPU only: prune the folder with ebb prune instead");
}

}  // namespace

void add_prune_options(CLI::App& app, PruneOptions& o) {
  app.add_option("--prune", o.share,
                 "Remove this share of heads, neurons or channels of every layer during training: "
                 "the model becomes smaller, and the step is planned anew each time; default: none")
      ->check(FiniteNumber::between(0.0, 1.0))
      ->type_name("SHARE")
      ->group(group);
  app.add_option("--prune-schedule", o.schedule,
                 "cubic, the default: gradually until --prune-until; constant: all at once after "
                 "--prune-from steps")
      ->check(member_of({"cubic", "constant"}))
      ->group(group);
  app.add_option("--prune-from", o.from, "Steps before the first part is removed; default: 0")
      ->check(WholeNumber(0))
      ->type_name("N")
      ->group(group);
  app.add_option("--prune-until", o.until, "Steps after which the model keeps its size")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--prune-every", o.every, "Steps from one cut to the next; default: 100")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->group(group);
  app.add_option("--prune-structure", o.structure,
                 "Parts to remove: heads, neurons, channels; default: all that the family's config "
                 "can express")
      ->delimiter(',')
      ->check(member_of({"heads", "neurons", "channels"}))
      ->type_name("LIST")
      ->group(group);
  app.add_option("--prune-multiple", o.multiple,
                 "Keep multiples of this number of neurons and channels; default: 1")
      ->check(WholeNumber(1))
      ->type_name("N")
      ->group(group);
}

std::optional<prune::GradualPruning> gradual_pruning(const PlanningOptions& planning) {
  const PruneOptions& o = planning.prune;
  if (!o.share) {
    for (const auto& [given, option] : {std::pair(o.schedule.has_value(), "--prune-schedule"),
                                        {o.from.has_value(), "--prune-from"},
                                        {o.until.has_value(), "--prune-until"},
                                        {o.every.has_value(), "--prune-every"},
                                        {!o.structure.empty(), "--prune-structure"},
                                        {o.multiple.has_value(), "--prune-multiple"}})
      if (given) throw UsageError(fmt::format("{} needs --prune SHARE", option));
    return {};
  }
  if (planning.precision == "fp8" && o.multiple.value_or(1) % fp8_unit != 0)
    throw UsageError(fmt::format(
        "--prune with --precision fp8 needs --prune-multiple {0}, or a multiple of {0}: products "
        "with other sizes would leave fp8",
        fp8_unit));
  prune::GradualPruning pruning;
  pruning.share = *o.share;
  pruning.schedule = mask_schedule_named(o.schedule.value_or("cubic"));
  if (pruning.schedule == MaskSchedule::cubic && !o.until)
    throw UsageError(
        "--prune with a cubic schedule needs --prune-until N: the steps after which the model "
        "keeps its size");
  if (pruning.schedule == MaskSchedule::constant && (o.until || o.every))
    throw UsageError(fmt::format("{} has no effect: a constant schedule cuts once",
                                 o.until ? "--prune-until" : "--prune-every"));
  if (pruning.schedule == MaskSchedule::constant && o.from.value_or(0) == 0)
    throw UsageError(
        "--prune with a constant schedule needs --prune-from N of at least 1: the steps before the "
        "cut");
  pruning.from = o.from.value_or(0), pruning.until = o.until.value_or(0);
  pruning.every = o.every.value_or(pruning.every);
  try {
    pruning.check();
  } catch (const ValueError& error) {
    throw UsageError(fmt::format("--prune: {}", error.what()));
  }
  refuse_others(planning);
  return pruning;
}

double pruned_share(const SavedRun& saved) {
  const auto note = saved.notes.find(pruned_note);
  if (note == saved.notes.end()) return 0.0;
  const std::string& text = note->second;
  double share = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share >= 0.0 && share < 1.0))
    throw FileError(
        fmt::format("{}: the share that was pruned must be at least 0 and below 1, but is {}",
                    saved.file.string(), text));
  return share;
}

void shrink_as_saved(const SavedRun& saved, workloads::Workload& task) {
  const double share = pruned_share(saved);
  if (share == 0.0) return;
  const auto& common = saved.spec.task.common;
  const data::Loader loader(
      task.train, workloads::training_loader(task.batch_size, common.seed, common.device));
  const Pruner shrunk({}, saved.spec.planning.prune, task, loader.types().front(), share);
}

Pruner::Pruner(const prune::GradualPruning& pruning, const PruneOptions& options,
               workloads::Workload& task, std::vector<TensorType> types, double share)
    : pruning_(pruning),
      task_(task),
      types_(std::move(types)),
      shrinking_(structure(), what_goes(options, task.model())),
      share_(share) {
  const prune::Structure dense = structure();
  if (share == 0.0 && shrinking_.any_removal(dense, pruning.share).empty())
    throw UsageError(fmt::format(
        "--prune {} removes nothing: in no layer is that a whole head, neuron or channel{}",
        pruning.share,
        options.multiple ? fmt::format(" with --prune-multiple {}", *options.multiple) : ""));
  if (share == 0.0) return;
  task_.shrink(dense, shrinking_.any_removal(dense, share), prune::Values::none);
}

prune::Structure Pruner::structure() const {
  return prune::find_structure(
      task_.model(), [this](const Batch& b) { return task_.loss(b); }, types_);
}

std::optional<Pruner::Cut> Pruner::next(double share) const {
  Cut cut{structure(), {}};
  cut.removal = shrinking_.removal(cut.structure, prune::magnitude_scores(cut.structure), share);
  if (cut.removal.empty()) return {};
  return cut;
}

void Pruner::apply(const Cut& cut, double share) {
  task_.shrink(cut.structure, cut.removal, prune::Values::copied);
  share_ = share;
}

nlohmann::ordered_json Pruner::fields() const {
  nlohmann::ordered_json cuts = nlohmann::ordered_json::array();
  for (const Size& s : sizes)
    cuts.push_back({{"from_step", s.step},
                    {"share", s.share},
                    {"parameters", s.parameters},
                    {"weights_gradients_state", (s.weights + s.gradients + s.state).count},
                    {"planned_peak_bytes", s.peak.count},
                    {"held_bytes", s.held.count}});
  const auto pair = [&](const auto& of) {
    return nlohmann::ordered_json{{"before", of(sizes.front())}, {"after", of(sizes.back())}};
  };
  nlohmann::ordered_json fields{
      {"share", share_},
      {"parameters", pair([](const Size& s) { return s.parameters; })},
      {"bytes", pair([](const Size& s) { return (s.weights + s.gradients + s.state).count; })},
      {"planned_peak_bytes", pair([](const Size& s) { return s.peak.count; })},
      {"held_bytes", pair([](const Size& s) { return s.held.count; })},
      {"sizes", cuts}};
  if (!task_.saves) return fields;
  const auto refused = task_.refused_by_transformers();
  fields["loads_in_transformers"] = !refused;
  if (refused) fields["why_not"] = *refused;
  return fields;
}

std::string Pruner::text() const {
  const Size &first = sizes.front(), &last = sizes.back();
  const auto bytes = [](const Size& s) { return to_string(s.weights + s.gradients + s.state); };
  return fmt::format(
      "pruned in {} cuts: parameters {} → {}; weights, gradients and state {} → {}; planned peak "
      "{} → {}\n",
      sizes.size() - 1, first.parameters, last.parameters, bytes(first), bytes(last),
      to_string(first.peak), to_string(last.peak));
}

}  // namespace ebb::cli
