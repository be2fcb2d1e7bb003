// Cross-entropy of one row of logits, for kernels that have all logits and for kernels that compute
// them in tiles. The arithmetic is that of rows.h.
#pragma once

#include "ops/cuda/index.cuh"
#include "ops/cuda/rows.cuh"

namespace ebb::cuda {

// The largest of some logits and Σ exp(x - largest), joined with others as logits come in parts.
template <class T>
struct LogitSums {
  T most = -infinity<T>();
  double total = 0.0;   // Σ exp(x - most)
  double logits = 0.0;  // Σ x, only when asked for

  LogitSums() = default;
  // Of a row's logits before `end`; those behind it are padding.
  template <class Walk>
  __device__ LogitSums(const Walk& walk, const typename Walk::Row& row, bool sum_logits,
                       std::int64_t end) {
    walk.slots([&](int slot, std::int64_t column) {
      T x[Walk::width];
      row.get(slot, column, x);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k)
        if (column + k < end) most = Larger{}(most, x[k]);
    });
    most = walk.largest(most);
    walk.slots([&](int slot, std::int64_t column) {
      T x[Walk::width], part = T(0), part_logits = T(0);
      row.get(slot, column, x);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) {
        if (column + k >= end) continue;
        part += exponential(x[k] - most);
        part_logits += x[k];
      }
      total += static_cast<double>(part);
      logits += static_cast<double>(part_logits);
    });
    total = walk.sum(total);
    if (sum_logits) logits = walk.sum(logits);
  }
  template <class Walk>
  __device__ LogitSums(const Walk& walk, const typename Walk::Row& row, bool sum_logits)
      : LogitSums(walk, row, sum_logits, walk.columns) {}

  __device__ LogitSums joined(const LogitSums& other) const {
    LogitSums both;
    both.most = Larger{}(most, other.most);
    // No logits yet: nothing to bring to the new base.
    const auto share = [&](const LogitSums& part) {
      return part.total == 0.0 ? 0.0
                               : part.total * exponential(static_cast<double>(part.most) -
                                                          static_cast<double>(both.most));
    };
    both.total = share(*this) + share(other);
    both.logits = logits + other.logits;
    return both;
  }

  __device__ T logsumexp() const {
    return static_cast<T>(static_cast<double>(most) + logarithm(total));
  }
  __device__ T loss(T at_target, double smoothing, std::int64_t classes) const {
    const double lse = static_cast<double>(logsumexp());
    const double missed = lse - static_cast<double>(at_target);
    if (smoothing == 0.0) return static_cast<T>(missed);
    return static_cast<T>((1.0 - smoothing) * missed +
                          smoothing * (lse - logits / static_cast<double>(classes)));
  }
};

// Whether a row has a loss. A target that is neither a class nor the one to ignore is reported.
__device__ inline bool row_counts(std::int64_t row, std::int64_t target, std::int64_t classes,
                                  std::int64_t ignore_index, const FaultSlot& fault,
                                  bool report = true) {
  if (target == ignore_index) return false;
  if (target >= 0 && target < classes) return true;
  if (report) fault.out_of_range(row, target, classes);
  return false;
}

// g · (p - expected) of each logit, 0 in rows that do not count.
template <class T>
struct LogitGradient {
  bool counts;
  std::int64_t target;
  T lse, g, each, at_target;  // the last two: what is expected elsewhere and at the target

  __device__ LogitGradient(bool row_has_loss, std::int64_t row_target, T row_lse, T grad,
                           double smoothing, std::int64_t classes)
      : counts(row_has_loss), target(row_target), lse(row_lse), g(grad) {
    const double share = smoothing / static_cast<double>(classes);
    each = static_cast<T>(share);
    at_target = static_cast<T>(1.0 - smoothing + share);
  }
  __device__ T operator()(T logit, std::int64_t column) const {
    if (!counts) return T(0);
    return (exponential(logit - lse) - (column == target ? at_target : each)) * g;
  }
};

}  // namespace ebb::cuda
