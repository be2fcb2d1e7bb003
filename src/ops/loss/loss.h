// Shared by losses: reduction over rows, and class targets in primitive ops.
#pragma once

#include <string_view>

#include "ebb/ops.h"

namespace ebb {

// The dtype of statistics and of sums over rows: float32 for half types.
inline DType statistics_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }

// The requested reduction of `losses`. Means and sums of half types are computed in float32, so
// that they overflow only if the result itself does.
Tensor reduce_loss(const Tensor& losses, Reduction reduction);

// The same with targets: losses of ignored targets are zero and do not count in the mean.
Tensor reduce_loss(const Tensor& losses, const Tensor& targets, Reduction reduction,
                   std::int64_t ignore_index);

// x (..., C) and targets (...) as x (N, C) and targets (N). Throws, in the name of `loss`, unless
// the leading axes agree.
struct LossRows {
  Tensor values, targets;
  LossRows(std::string_view loss, const Tensor& x, const Tensor& targets);
};

// Targets with the ignored ones replaced by 0, and which were not ignored.
struct ClassTargets {
  Tensor valid, index;
  ClassTargets(const Tensor& targets, std::int64_t ignore_index);
};

// One loss per row of log-probabilities (N, C), in their dtype; targets (N).
Tensor nll_rows(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index,
                double label_smoothing);

}  // namespace ebb
