// Optimizers by the names the command line uses.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ebb/optim/optimizer.h"

namespace ebb::optim {

// "adamw8bit" with its published defaults and `rate`, or its own default rate. Unknown names are an
// error that lists the known ones. `state` is the dtype of moments that are neither quantised nor
// factored; bfloat16 moments use stochastic rounding if the rule supports it.
Optimizer by_name(std::string_view name, std::optional<double> rate = {}, DType state = f32);
std::vector<std::string_view> names();

}  // namespace ebb::optim
