// The parts of a batch whose gradients are accumulated.
#pragma once

#include <vector>

#include "ebb/ops.h"
#include "ebb/train/train_step.h"

namespace ebb {

struct MicroBatch {
  Batch batch;
  double share = 1.0;  // of the whole batch

  // The part's share of a mean over the whole batch, from the mean over the part.
  Tensor share_of(const Tensor& mean) const { return share == 1.0 ? mean : mean * share; }
};

// Divides the first axis of all tensors into at most `parts` nearly equal parts: 10 items in 4
// parts are 3, 3, 2 and 2.
std::vector<MicroBatch> micro_batches(const Batch& whole, std::int64_t parts);

// Batches that are equal shares of one.
std::vector<MicroBatch> equal_parts(const std::vector<Batch>& batches);

}  // namespace ebb
