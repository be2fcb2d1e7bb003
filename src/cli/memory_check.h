// Checks whether a run fits the machine before it starts, and whether it kept its budget at the
// end.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/planning.h"
#include "ebb/bytes.h"
#include "ebb/device.h"

namespace ebb::cli {

// Memory that this process can still take: on the CPU the system's available memory or, if a
// control group allows less, what is left of its limit; on a GPU its free memory. No value: not
// known.
std::optional<Bytes> available_memory(Device device);

// "a plan of 3 TiB is larger than ...", if it is. `available` may be the memory of a device that is
// only described by a file.
std::optional<std::string> too_large(Bytes planned, std::optional<Bytes> available);

// Warns on standard error and in `fields` if the plan is too large.
void warn_if_too_large(Bytes planned, const PlanningOptions& planning, const Rates& rates,
                       nlohmann::ordered_json& fields);
// For verbs that run what they plan: adds --overcommit.
void add_overcommit_option(CLI::App& app, bool& overcommit);
// Refuses to start if the plan does not fit, unless `overcommit`; `remedy` says what would take
// less.
void require_memory(Bytes planned, Device device, bool overcommit,
                    std::string_view remedy = "--budget asks for less");

// How much of its budget a finished run took.
struct Kept {
  std::optional<Bytes> budget;  // no value: there was no budget
  Bytes taken;
  bool whole_process = false;

  bool exceeded() const { return budget && taken > *budget; }
  std::string text() const;  // that the budget was exceeded
  // Reports on standard error that the budget was exceeded; returns the exit code.
  int report() const;
};
// Compares the process's peak with a budget for the whole process, or the measured peak of the plan
// with a budget for the step. `step_budget` is the budget that the step was planned with.
Kept kept_budget(const PlanningOptions& planning, std::optional<Bytes> step_budget, Bytes measured);

}  // namespace ebb::cli
