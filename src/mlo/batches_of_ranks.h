// Batches that are kept by an engine on several ranks: each rank has its leaves, files have all.
#pragma once

#include <cstddef>
#include <span>

#include "ebb/communicator.h"
#include "ebb/tensor.h"
#include "ebb/train/ranks.h"

namespace ebb::mlo {

// The communicator of a run on several ranks, which must be there.
Communicator& connected(Communicator* communicator);

// A tensor of a batch, from the ranks' parts of it; every rank calls it and gets the whole.
Tensor whole_of_ranks(const Tensor& part, const RankOptions& options, Communicator* communicator);

// This rank's part of the bytes of such a tensor. A ShapeError if they cannot be divided.
Tensor part_of_rank(std::span<const std::byte> whole, const TensorType& type,
                    const RankOptions& options);

}  // namespace ebb::mlo
