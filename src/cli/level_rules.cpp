#include "cli/level_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/verb.h"

namespace ebb::cli {
namespace {

struct Refusal {
  std::string_view option, why;
};
constexpr std::string_view masks_of_one_level = "levels do not support masks of weights";
constexpr std::string_view parts_of_one_level = "levels do not support pruning";
constexpr Refusal refusals[] = {
    {"--optimizer", "say --LEVEL.optimizer"},
    {"--accumulate", "say --LEVEL.accumulate"},
    {"--precision fp8", "split-bf16 goes with several"},
    {"--activation-bits", "levels above differentiate through the gradients that it rounds"},
    {"--lr", "say --LEVEL.lr"},
    {"--clip", "say --LEVEL.clip"},
    {"--clip-by", "a level's gradients are clipped by the norm of its own step"},
    {"--warmup", "the rates of levels are constant"},
    {"--schedule", "the rates of levels are constant"},
    {"--loss-walks", "it is for the fused loss, which no level has"},
    {"--shard",
     "hypergradients read the whole weights and optimizer state of the levels below, so ranks can "
     "only divide batches"},
    {"--sparsity", masks_of_one_level},
    {"--sparsity-pattern", masks_of_one_level},
    {"--sparsity-method", masks_of_one_level},
    {"--sparsity-schedule", masks_of_one_level},
    {"--sparsity-from", masks_of_one_level},
    {"--sparsity-until", masks_of_one_level},
    {"--sparsity-every", masks_of_one_level},
    {"--sparsity-masks", masks_of_one_level},
    {"--prune", parts_of_one_level},
    {"--prune-schedule", parts_of_one_level},
    {"--prune-from", parts_of_one_level},
    {"--prune-until", parts_of_one_level},
    {"--prune-every", parts_of_one_level},
    {"--prune-structure", parts_of_one_level},
    {"--prune-multiple", parts_of_one_level},
    {"--save", "their models have no Hugging Face form"},
};

void refuse_where(bool given, std::string_view option, const std::string& workload) {
  if (!given) return;
  const auto* refusal = std::find_if(std::begin(refusals), std::end(refusals),
                                     [&](const Refusal& r) { return r.option == option; });
  throw UsageError(fmt::format("{} is for workloads of one level, but {} has several ({}): {}",
                               option, workload, fmt::join(workloads::level_names(workload), ", "),
                               refusal->why));
}

}  // namespace

bool is_for_several_levels(const CLI::Option& option) {
  return option.get_group() == several_group || option.get_group().starts_with(level_group);
}

void refuse_multilevel_options(const CLI::App& app, const std::string& workload) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && is_for_several_levels(*option))
      throw UsageError(fmt::format("{} is for workloads of several levels ({}), but {} has one",
                                   option->get_name(),
                                   fmt::join(workloads::multilevel_names(), ", "), workload));
}

bool is_for_whole_of_several(std::string_view option) {
  return std::none_of(std::begin(refusals), std::end(refusals),
                      [&](const Refusal& r) { return r.option == option; });
}

void refuse_single_level_options(const std::string& workload, const PlanningOptions& planning) {
  refuse_where(planning.optimizer.has_value(), "--optimizer", workload);
  refuse_where(planning.accumulate != "1", "--accumulate", workload);
  refuse_where(planning.clip.has_value(), "--clip", workload);
  refuse_where(planning.clip_by != PlanningOptions{}.clip_by, "--clip-by", workload);
  refuse_where(planning.loss_walks.has_value(), "--loss-walks", workload);
  if (std::ranges::find(planning.offload, "activations") != planning.offload.end())
    throw UsageError(fmt::format(
        "--offload activations is for workloads of one level: for {}, use --offload state,weights",
        workload));
  if (planning.leaves && (planning.host_budget || planning.disk_budget))
    throw UsageError(fmt::format(
        "{}: on several ranks, the levels of {} keep all tensors on their device: leave it out",
        planning.disk_budget ? "--disk-budget" : "--host-budget", workload));
  refuse_where(planning.shard != "0", "--shard", workload);
  refuse_where(planning.precision == "fp8", "--precision fp8", workload);
  refuse_where(planning.activation_bits.has_value(), "--activation-bits", workload);
  const workloads::SparsityOptions& sparsity = planning.sparsity;
  refuse_where(sparsity.share.has_value(), "--sparsity", workload);
  refuse_where(sparsity.pattern.has_value(), "--sparsity-pattern", workload);
  refuse_where(sparsity.method.has_value(), "--sparsity-method", workload);
  refuse_where(sparsity.schedule.has_value(), "--sparsity-schedule", workload);
  refuse_where(sparsity.from.has_value(), "--sparsity-from", workload);
  refuse_where(sparsity.until.has_value(), "--sparsity-until", workload);
  refuse_where(sparsity.every.has_value(), "--sparsity-every", workload);
  refuse_where(sparsity.masks.has_value(), "--sparsity-masks", workload);
  const workloads::PruneOptions& prune = planning.prune;
  refuse_where(prune.share.has_value(), "--prune", workload);
  refuse_where(prune.schedule.has_value(), "--prune-schedule", workload);
  refuse_where(prune.from.has_value(), "--prune-from", workload);
  refuse_where(prune.until.has_value(), "--prune-until", workload);
  refuse_where(prune.every.has_value(), "--prune-every", workload);
  refuse_where(!prune.structure.empty(), "--prune-structure", workload);
  refuse_where(prune.multiple.has_value(), "--prune-multiple", workload);
  if (planning.on_nan == "skip")
    throw UsageError(
        fmt::format("--on-nan skip is for workloads of one level, but {} has several: use --on-nan "
                    "stop or ignore",
                    workload));
}

void refuse_single_level_options(const TrainCommand& command) {
  const std::string& workload = command.workload().name;
  refuse_single_level_options(workload, command.planning);
  refuse_where(command.rate.has_value(), "--lr", workload);
  refuse_where(command.warmup > 0, "--warmup", workload);
  refuse_where(command.schedule != TrainCommand{}.schedule, "--schedule", workload);
  refuse_where(command.save.has_value(), "--save", workload);
}

bool applies_to_level(const std::string& workload, const std::string& level,
                      const std::string& name) {
  if (level != workloads::level_names(workload).back()) return true;
  constexpr std::string_view of_levels_above[] = {"method", "unroll", "warmup", "iterations",
                                                  "alpha"};
  return std::find(std::begin(of_levels_above), std::end(of_levels_above), name) ==
         std::end(of_levels_above);
}

std::optional<ParameterForm> form_of(const PlanningOptions& planning, Precision precision) {
  using Kind = ParameterForm::Kind;
  if (planning.rounding && precision == Precision::pure_bf16)
    return ParameterForm{.kind = *planning.rounding == "kahan"        ? Kind::compensated
                                 : *planning.rounding == "stochastic" ? Kind::stochastic
                                                                      : Kind::plain};
  if (planning.master_bits && (precision == Precision::split_bf16 || precision == Precision::fp8))
    return ParameterForm{.kind = Kind::completed, .bits = *planning.master_bits};
  return {};
}

void check_forms(const PlanningOptions& planning, const std::vector<Precision>& precisions) {
  const auto need = [&](bool given, const char* option, std::initializer_list<Precision> wanted) {
    if (!given || std::find_first_of(precisions.begin(), precisions.end(), wanted.begin(),
                                     wanted.end()) != precisions.end())
      return;
    std::vector<std::string_view> names, takers;
    for (const Precision precision : precisions) names.push_back(name(precision));
    for (const Precision precision : wanted) takers.push_back(name(precision));
    throw UsageError(fmt::format("{} is for --precision {}, but the precision is {}", option,
                                 fmt::join(takers, " and "), fmt::join(names, " and ")));
  };
  need(planning.rounding.has_value(), "--rounding", {Precision::pure_bf16});
  need(planning.master_bits.has_value(), "--master-bits", {Precision::split_bf16, Precision::fp8});
}

}  // namespace ebb::cli
