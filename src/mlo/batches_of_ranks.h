// Batches that an engine keeps on several ranks: each rank holds its own leaves, files hold all of
// them.
#pragma once

#include <cstddef>
#include <span>

#include "ebb/communicator.h"
#include "ebb/tensor.h"
#include "ebb/train/ranks.h"

namespace ebb::mlo {

// The communicator of a run on several ranks. A ValueError if there is none.
Communicator& connected(Communicator* communicator);

// The whole tensor of a batch, from the ranks' parts of it. Every rank must call it.
Tensor whole_of_ranks(const Tensor& part, const RankOptions& options, Communicator* communicator);

// This rank's part of the bytes of such a tensor. A ShapeError if they cannot be divided.
Tensor part_of_rank(std::span<const std::byte> whole, const TensorType& type,
                    const RankOptions& options);

}  // namespace ebb::mlo
