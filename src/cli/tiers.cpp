#include "cli/tiers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/accepted_by.h"
#include "cli/member_of.h"
#include "cli/planning.h"
#include "cli/verb.h"
#include "core/backend.h"
#include "core/disk_rates.h"

namespace ebb::cli {
namespace {

bool used(const Plan& plan, Tier tier) { return plan.held[tier] > 0_B; }

double rate(Bytes bytes, double seconds) {
  return seconds > 0.0 ? static_cast<double>(bytes.count) / seconds : 0.0;
}

}  // namespace

void add_tier_options(CLI::App& app, PlanningOptions& options) {
  const char* group = "Memory";
  const auto size = accepted_by([](const std::string& text) { parse_bytes(text); });
  app.add_option("--host-budget", options.host_budget,
                 "On a GPU: bytes of the host's memory that tensors may be moved to; default: none")
      ->check(size)
      ->type_name("SIZE")
      ->group(group);
  app.add_option("--disk-budget", options.disk_budget,
                 "On the CPU: bytes of a file that tensors may be moved to; default: none")
      ->check(size)
      ->type_name("SIZE")
      ->group(group);
  app.add_option("--offload-folder", options.offload_folder,
                 "Folder for that file, which has no name and leaves nothing behind; default: the "
                 "current one")
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR")
      ->group(group);
  app.add_option(
         "--offload", options.offload,
         "Tensors that may be moved, joined by commas: state, weights, activations; default: all")
      ->delimiter(',')
      ->check(member_of({"state", "weights", "activations"}))
      ->group(group);
}

void use_tiers(const PlanningOptions& options, Device device, CompileOptions& compile) {
  OffloadOptions& offload = compile.plan.offload;
  const bool gpu = backend_of(device).runs_beside_host();
  if (options.host_budget && !gpu)
    throw UsageError("--host-budget is for a GPU: on the CPU, --budget limits the host's memory");
  if (options.disk_budget && gpu)
    throw UsageError(
        "--disk-budget is for the CPU: for a GPU, use --host-budget, which moves tensors to the "
        "host's memory");
  if (options.offload_folder && !options.disk_budget)
    throw UsageError("--offload-folder needs --disk-budget SIZE");
  if (!options.host_budget && !options.disk_budget) {
    if (!options.offload.empty())
      throw UsageError("--offload needs --host-budget SIZE or --disk-budget SIZE");
    return;
  }
  if (!options.budget && !options.tries_budgets)
    throw UsageError(fmt::format("{} needs --budget SIZE: without a limit nothing is moved",
                                 gpu ? "--host-budget" : "--disk-budget"));
  if (options.host_budget) offload.budgets[Tier::host] = parse_bytes(*options.host_budget);
  if (options.disk_budget) offload.budgets[Tier::disk] = parse_bytes(*options.disk_budget);
  if (!options.offload.empty()) {
    const auto moves = [&](const char* what) {
      return std::find(options.offload.begin(), options.offload.end(), what) !=
             options.offload.end();
    };
    offload.state = moves("state"), offload.weights = moves("weights"),
    offload.activations = moves("activations");
  }
  if (!options.disk_budget) return;
  compile.offload_folder = options.offload_folder.value_or(".");
  if (!named_device(options.device)) return;  // a described device: its file has the rates
  if (offload.budgets[Tier::disk] == 0_B) return;
  // The measurement takes no more of the disk than the run may.
  const DiskRates disk =
      measure_disk(compile.offload_folder, std::min(256_MiB, offload.budgets[Tier::disk]));
  // Most of the time a step fetches and stores simultaneously.
  compile.plan.rates.links[Tier::disk] = {std::min(disk.read, disk.each_of_both),
                                          std::min(disk.write, disk.each_of_both)};
}

nlohmann::ordered_json tier_fields(const Plan& plan, const CompileOptions& compile,
                                   const std::optional<TierUse>& measured) {
  nlohmann::ordered_json tiers;
  for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) {
    if (!used(plan, tier) && compile.plan.offload.budgets[tier] == 0_B && tier != Tier::device)
      continue;
    nlohmann::ordered_json row{{"planned_bytes", plan.held[tier].count}};
    const std::optional<Bytes> budget = tier == Tier::device
                                            ? compile.plan.budget
                                            : std::optional(compile.plan.offload.budgets[tier]);
    if (budget) row["budget_bytes"] = budget->count;
    if (tier != Tier::device) {
      row["fetched_bytes"] = plan.moved[tier].fetched.count;
      row["stored_bytes"] = plan.moved[tier].stored.count;
      row["fetch_bytes_per_second"] = compile.plan.rates.links[tier].fetch;
      row["store_bytes_per_second"] = compile.plan.rates.links[tier].store;
    }
    if (measured) row["measured_bytes"] = measured->held[tier].count;
    if (measured && tier == Tier::disk) {
      const Program::FileTraffic& moved = measured->traffic;
      row["measured_fetch_bytes_per_second"] = rate(moved.read, moved.read_seconds);
      row["measured_store_bytes_per_second"] = rate(moved.written, moved.write_seconds);
    }
    tiers[std::string(name(tier))] = std::move(row);
  }
  return tiers.size() > 1 ? tiers : nlohmann::ordered_json{};
}

std::string tier_text(const Plan& plan) {
  std::string text;
  for (const Tier tier : {Tier::host, Tier::disk}) {
    if (!used(plan, tier)) continue;
    CategoryBytes categories;
    for (const Buffer& buffer : plan.buffers)
      if (plan.tier_of(buffer) == tier && buffer.place.leaf)
        categories[buffer.category] += buffer.size;
    const Bytes results = plan.held[tier] - categories.total();
    text += fmt::format(
        "{} {}: weights {}, state {}, results of the step {}; a step fetches {} and stores {}\n",
        name(tier), to_string(plan.held[tier]), to_string(categories[Category::weights]),
        to_string(categories.total() - categories[Category::weights]), to_string(results),
        to_string(plan.moved[tier].fetched), to_string(plan.moved[tier].stored));
  }
  return text;
}

}  // namespace ebb::cli
