// Optimizers by the names the command line uses.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ebb/optim/optimizer.h"

namespace ebb::optim {

// "adamw8bit" with its published defaults and `rate`, or its own default rate. Unknown names are an
// error that lists the known ones. Rules that keep moments as they are, not in codes or factors,
// keep them in `state`: bfloat16 ones are rounded by chance where the rule can.
Optimizer by_name(std::string_view name, std::optional<double> rate = {}, DType state = f32);
std::vector<std::string_view> names();

}  // namespace ebb::optim
