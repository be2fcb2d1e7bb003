// Which variables of a program's levels are outside the device. A level that does not run needs
// none of its state; so where tiers are given and a level's budget asks for it, variables stay in
// another tier and every program fetches and stores those that it uses. Results of steps stay on
// the device.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ebb/program.h"
#include "mlo/level.h"

namespace ebb::mlo {

using Homes = std::unordered_map<std::uint64_t, Tier>;  // by Node::id; others are on the device

// Everything that can be outside the device, within the budgets of its tiers.
Homes most_homes(const std::vector<std::unique_ptr<Level>>& levels, const OffloadOptions& offload);

// As little as the budgets of all levels allow: those first that programs use least often. All of
// `most_homes` if even that is not enough. Sets the levels' homes.
Homes settled_homes(const std::vector<std::unique_ptr<Level>>& levels,
                    const OffloadOptions& offload);

}  // namespace ebb::mlo
