// Cross-entropy of one row of logits, for kernels that have all logits and for kernels that compute
// them in chunks. Rows are walked in tiles: half types are widened a tile at a time, and each loop
// over a tile vectorises.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/vector_math.h"
#include "ops/dispatch.h"
#include "ops/pointwise/convert.h"

namespace ebb {

inline constexpr std::int64_t row_tile = 1024;

// `count` logits in the type they are computed in; `tile` holds them when they must be widened.
template <class S>
const Compute<S>* widened(const S* x, Compute<S>* tile, std::int64_t count) {
  if constexpr (std::is_same_v<S, Compute<S>>) {
    return x;
  } else {
    widen(x, tile, count);
    return tile;
  }
}

// Folds with `lanes` accumulators, so that the loop vectorises with a fixed order of sums.
template <class T, class Fold>
T fold_tile(const T* x, std::int64_t count, T start, const Fold& fold) {
  constexpr int lanes = 32;
  T acc[lanes];
  std::fill_n(acc, lanes, start);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int k = 0; k < lanes; ++k) acc[k] = fold(acc[k], x[i + k]);
  for (; i < count; ++i) acc[0] = fold(acc[0], x[i]);
  for (int k = 1; k < lanes; ++k) acc[0] = fold(acc[0], acc[k]);
  return acc[0];
}

template <class T>
struct RowSums {
  T logsumexp = 0;
  double logits = 0;  // Σ logits, only when asked for
};

// Sums within a tile are in T, across tiles in double. A NaN makes the exponentials' sum NaN.
template <class S>
RowSums<Compute<S>> row_sums(const S* x, std::int64_t count, bool sum_logits) {
  using T = Compute<S>;
  const auto larger = [](T a, T b) { return b > a ? b : a; };
  const auto add = [](T a, T b) { return a + b; };
  T tile[row_tile];
  T top = -std::numeric_limits<T>::infinity();
  RowSums<T> sums;
  for (std::int64_t i = 0; i < count; i += row_tile) {
    const std::int64_t width = std::min(row_tile, count - i);
    const T* logits = widened(x + i, tile, width);
    top = larger(top, fold_tile(logits, width, top, larger));
    if (sum_logits) sums.logits += static_cast<double>(fold_tile(logits, width, T(0), add));
  }
  double total = 0.0;
  for (std::int64_t i = 0; i < count; i += row_tile) {
    const std::int64_t width = std::min(row_tile, count - i);
    const T* logits = widened(x + i, tile, width);
    for (std::int64_t k = 0; k < width; ++k) tile[k] = vm::exp(logits[k] - top);
    total += static_cast<double>(fold_tile(tile, width, T(0), add));
  }
  sums.logsumexp = static_cast<T>(static_cast<double>(top) + std::log(total));
  return sums;
}

// The loss of a row whose target is in range: -Σ T log p with T = 1 - smoothing at the target, plus
// smoothing / count everywhere.
template <class S>
Compute<S> row_loss(const S* x, std::int64_t count, std::int64_t target, double smoothing,
                    const RowSums<Compute<S>>& sums) {
  const double at_target =
      static_cast<double>(sums.logsumexp) - static_cast<double>(static_cast<Compute<S>>(x[target]));
  if (smoothing == 0.0) return static_cast<Compute<S>>(at_target);
  const double average =
      static_cast<double>(sums.logsumexp) - sums.logits / static_cast<double>(count);
  return static_cast<Compute<S>>((1.0 - smoothing) * at_target + smoothing * average);
}

// g · (p - share) over part of a row, where `share` is the smoothed probability of every class; the
// caller subtracts the rest at the target. May run in place.
template <class S>
void row_gradient(const S* x, S* out, std::int64_t count, Compute<S> lse, Compute<S> g,
                  Compute<S> share) {
  using T = Compute<S>;
  const T shift = g * share;
  if constexpr (std::is_same_v<S, T>) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = vm::exp(x[i] - lse) * g - shift;
  } else {
    T tile[row_tile];
    for (std::int64_t i = 0; i < count; i += row_tile) {
      const std::int64_t width = std::min(row_tile, count - i);
      widen(x + i, tile, width);
      for (std::int64_t k = 0; k < width; ++k) tile[k] = vm::exp(tile[k] - lse) * g - shift;
      narrow(tile, out + i, width);
    }
  }
}

// Whether a row has a loss. A target that is neither a class nor the one to ignore is reported.
inline bool row_counts(std::int64_t row, std::int64_t target, std::int64_t classes,
                       std::int64_t ignore_index, Fault& fault) {
  if (target == ignore_index) return false;
  if (target >= 0 && target < classes) return true;
  fault.out_of_range(row, target, classes);
  return false;
}

// The share of the target itself at the target, and of every class.
struct TargetShares {
  double target, each;
  TargetShares(double smoothing, std::int64_t classes)
      : target(1.0 - smoothing), each(smoothing / static_cast<double>(classes)) {}
};

}  // namespace ebb
