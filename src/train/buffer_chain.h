// Running statistics of a step on several ranks. Each leaf updates a buffer from the value that the
// leaf before it left, on whatever rank that was: the numbers that the leaves contribute are
// gathered, and every rank computes the whole chain.
#pragma once

#include <vector>

#include "ebb/graph.h"
#include "ebb/train/ranks.h"

namespace ebb {

// `leaves`: for every leaf of this rank, in order, the updates that it alone would make: functions
// of the buffers' values before the step.
std::vector<Update> chained_updates(const std::vector<std::vector<Update>>& leaves,
                                    const RankOptions& options, const LeafBlocks& blocks);

}  // namespace ebb
