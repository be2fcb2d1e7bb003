// Options and reports of plans that use other tiers of memory than the device's own.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ebb/program.h"
#include "ebb/workloads/train_spec.h"

namespace ebb::cli {

using workloads::PlanningOptions;

// Adds --host-budget, --disk-budget, --offload-folder and --offload.
void add_tier_options(CLI::App& app, PlanningOptions& options);

// Allows plans to use the requested tiers, and measures the rates of a disk. An error if a tier
// does not exist for the device, or if its budget would not be used.
void use_tiers(const PlanningOptions& options, Device device, CompileOptions& compile);

// What a program holds in each tier, and how much it has moved.
struct TierUse {
  ByTier<Bytes> held;
  Program::FileTraffic traffic;
};

// For every tier that the plan uses: budget, planned and measured bytes, bytes moved in a step, and
// rates. Empty if it uses the device alone.
nlohmann::ordered_json tier_fields(const Plan& plan, const CompileOptions& compile,
                                   const std::optional<TierUse>& measured = {});
std::string tier_text(const Plan& plan);  // the same for people, a line for each tier

}  // namespace ebb::cli
