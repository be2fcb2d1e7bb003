// The items of every batch that one rank reads. All ranks share one order of all items.
#pragma once

#include "ebb/data/dataset.h"
#include "ebb/train/ranks.h"

namespace ebb::data {

// A view of `whole` for one rank: asked for a batch of `batch` items of the whole run, it gives
// only the items of this rank's leaves. `batch` must be divisible by the number of leaves.
DatasetPtr part_of_batches(DatasetPtr whole, std::int64_t batch, const RankOptions& options);

// How many of the `batch` items that all ranks read together this rank reads.
std::int64_t own_items(std::int64_t batch, const RankOptions& options);

}  // namespace ebb::data
