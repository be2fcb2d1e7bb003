#include "cli/memory_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/process_memory.h"
#include "cli/verb.h"
#include "core/cuda/cuda.h"
#include "ebb/error.h"

namespace ebb::cli {

std::optional<Bytes> available_memory(Device device) {
  if (device.kind != Device::Kind::cuda) return system_available();
  if (cuda::device_count() <= device.index) return {};
  return cuda::memory_info(device).free;
}

std::optional<std::string> too_large(Bytes planned, std::optional<Bytes> available) {
  if (!available || planned <= *available) return {};
  return fmt::format("the plan takes {}, but only {} of memory are available", to_string(planned),
                     to_string(*available));
}

void warn_if_too_large(Bytes planned, const PlanningOptions& planning, const Rates& rates,
                       nlohmann::ordered_json& fields) {
  const std::optional<Device> here = named_device(planning.device);
  const std::optional<Bytes> available = here                 ? available_memory(*here)
                                         : rates.memory > 0_B ? std::optional(rates.memory)
                                                              : std::nullopt;
  const auto why = too_large(planned, available);
  if (available) fields["available_bytes"] = available->count;
  fields["exceeds_memory"] = why.has_value();
  if (why) std::cerr << "ebb: warning: " << *why << std::endl;
}

void add_overcommit_option(CLI::App& app, bool& overcommit) {
  add_flag(app, "--overcommit", overcommit,
           "Start even if the plan is larger than the available memory");
}

void require_memory(Bytes planned, Device device, bool overcommit, std::string_view remedy) {
  const auto why = too_large(planned, available_memory(device));
  if (!why) return;
  if (!overcommit)
    throw MemoryError(fmt::format("{}; {}, --overcommit starts anyway", *why, remedy));
  std::cerr << "ebb: warning: " << *why << std::endl;
}

std::string Kept::text() const {
  return fmt::format("the budget of {} was not kept: {} took {} at its peak", to_string(*budget),
                     whole_process ? "the process" : "the run", to_string(taken));
}

int Kept::report() const {
  if (!exceeded()) return success;
  std::cout.flush();
  std::cerr << "ebb: error: " << text() << std::endl;
  return over_budget;
}

Kept kept_budget(const PlanningOptions& planning, std::optional<Bytes> step_budget,
                 Bytes measured) {
  if (planning.whole_process) return {parse_bytes(*planning.budget), process_peak(), true};
  return {step_budget, measured, false};
}

}  // namespace ebb::cli
