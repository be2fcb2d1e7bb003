// Whether a run fits the machine before it starts, and whether it kept its budget when it is over.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/planning.h"
#include "ebb/bytes.h"
#include "ebb/device.h"

namespace ebb::cli {

// What this process can still take: on the CPU the system's available memory or, where a control
// group allows less, what is left of that; on a GPU its free memory. None: not known.
std::optional<Bytes> available_memory(Device device);

// "a plan of 3 TiB is larger than ...", where it is; the device may be one that only a file
// describes, of `memory` bytes.
std::optional<std::string> too_large(Bytes planned, std::optional<Bytes> available);

// Says so on standard error and in `fields`.
void warn_if_too_large(Bytes planned, const PlanningOptions& planning, const Rates& rates,
                       nlohmann::ordered_json& fields);
// For verbs that run what they plan: adds --overcommit.
void add_overcommit_option(CLI::App& app, bool& overcommit);
// Refuses to start, unless `overcommit`; `remedy` says what would take less.
void require_memory(Bytes planned, Device device, bool overcommit,
                    std::string_view remedy = "--budget asks for less");

// What a finished run took of the budget it was given.
struct Kept {
  std::optional<Bytes> budget;  // none: nothing was promised
  Bytes taken;
  bool whole_process = false;

  bool exceeded() const { return budget && taken > *budget; }
  // Says on standard error that it was exceeded; gives the exit code.
  int report() const;
};
// The process's own peak against a budget for the whole process, or the measured peak of the plan
// against one for the step. `step_budget` is what the step was planned with.
Kept kept_budget(const PlanningOptions& planning, std::optional<Bytes> step_budget, Bytes measured);

}  // namespace ebb::cli
