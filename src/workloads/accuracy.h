#pragma once

#include "ebb/ops.h"

namespace ebb::workloads {

// The accuracy: the share of rows of `logits` (N, C) whose argmax is the label, `labels` (N).
inline Tensor share_right(const Tensor& logits, const Tensor& labels) {
  return mean(cast(equal(argmax(logits, -1), cast(labels, i64)), f32));
}

}  // namespace ebb::workloads
