// Puts variables into the tiers of memory that a plan has chosen.
#pragma once

#include <cstdint>
#include <filesystem>

#include "ebb/plan.h"

namespace ebb {

// Moves the plan's variables that lie elsewhere, one after another, into one new block for each
// tier. A variable without a value gets its initial one. `folder` is for the file of the disk's
// tier.
void place_variables(const Plan& plan, const Leaves& leaves, std::uint64_t seed,
                     const std::filesystem::path& folder);

}  // namespace ebb
