// Which options apply to workloads of several levels, and which to workloads of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "cli/planning.h"
#include "cli/train_command.h"

namespace ebb::cli {

// Groups of the options that only workloads of several levels have.
inline constexpr std::string_view several_group = "Several levels", level_group = "Level ";
bool is_for_several_levels(const CLI::Option& option);

// A usage error if any of them is given for a workload of one level.
void refuse_multilevel_options(const CLI::App& app, const std::string& workload);

// Whether an option without a level's name, such as "--lr", has a meaning for several levels.
bool is_for_whole_of_several(std::string_view option);

// A usage error, with the reason, if an option is given that has no meaning for several levels.
void refuse_single_level_options(const std::string& workload, const PlanningOptions& planning);
void refuse_single_level_options(const TrainCommand& command);

// Whether the option --LEVEL.NAME can have an effect. Some options act only through the levels
// above; the highest level has none.
bool applies_to_level(const std::string& workload, const std::string& level,
                      const std::string& name);

// How the parameters of a level are stored in its precision, by --rounding and --master-bits.
std::optional<ParameterForm> form_of(const PlanningOptions& planning, Precision precision);
// A usage error if one of the two is given and no level has the precision that it is for.
void check_forms(const PlanningOptions& planning, const std::vector<Precision>& precisions);

}  // namespace ebb::cli
