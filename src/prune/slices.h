// Slices of a variable's bytes.
#pragma once

#include <map>
#include <vector>

#include "ebb/prune/remove.h"

namespace ebb::prune {

// For each axis that loses indices: whether each index is removed.
using GoingIndices = std::map<int, std::vector<bool>>;
GoingIndices indices_that_go(const Structure& structure, const Removal& removal,
                             std::size_t variable);

// A value without these indices.
Tensor sliced(const Tensor& value, const GoingIndices& axes);

}  // namespace ebb::prune
