// Puts variables into the tiers of memory that a plan has chosen.
#pragma once

#include <cstdint>
#include <filesystem>

#include "ebb/plan.h"

namespace ebb {

// Moves variables, one after another, into one new block of a tier. One without a value gets its
// initial one. `folder` is for the file of the disk's tier.
void place_in(Tier tier, Device device, const Leaves& variables, std::uint64_t seed,
              const std::filesystem::path& folder);

// The same for the plan's variables that lie elsewhere, one block for each tier.
void place_variables(const Plan& plan, const Leaves& leaves, std::uint64_t seed,
                     const std::filesystem::path& folder);

}  // namespace ebb
