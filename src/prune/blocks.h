// The blocks of a traced model: where each begins and ends, and the products in it.
#pragma once

#include "ebb/prune/structure.h"

namespace ebb::prune {

// Fills `blocks` and `products`.
void find_blocks(const std::vector<std::shared_ptr<Node>>& nodes, Structure& structure);

// The longest common part of module paths, in whole names.
std::string common_path(const std::vector<std::string_view>& paths);

}  // namespace ebb::prune
