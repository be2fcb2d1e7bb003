// The items of every batch that one rank reads. All ranks share one order of all items.
#pragma once

#include "ebb/data/dataset.h"
#include "ebb/train/ranks.h"

namespace ebb::data {

// A dataset whose batches of `batch` items, which are the run's, give the items of this rank's
// leaves. `batch` must be divisible by the leaves.
DatasetPtr part_of_batches(DatasetPtr whole, std::int64_t batch, const RankOptions& options);

// The items of a batch that a rank reads, of `batch` items that all ranks read together.
std::int64_t own_items(std::int64_t batch, const RankOptions& options);

}  // namespace ebb::data
