// Decides which variables of a program's levels are kept outside the device. A level that does not
// run needs none of its state. So if other tiers have budgets and a level's own budget requires it,
// variables stay in another tier, and every program fetches and stores those that it uses. Results
// of steps stay on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ebb/program.h"
#include "mlo/level.h"

namespace ebb::mlo {

using Homes = std::unordered_map<std::uint64_t, Tier>;  // by Node::id; others are on the device

// Every variable that can be outside the device, within the budgets of the tiers.
Homes most_homes(const std::vector<std::unique_ptr<Level>>& levels, const OffloadOptions& offload);

// As few variables as the budgets of all levels allow, starting with those that programs use least
// often. Returns all of `most_homes` if even that is not enough. Sets the levels' homes.
Homes settled_homes(const std::vector<std::unique_ptr<Level>>& levels,
                    const OffloadOptions& offload);

}  // namespace ebb::mlo
