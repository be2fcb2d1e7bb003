// Shared by SparseGPT and GPTQ: the columns of a matrix change one after another, and later columns
// compensate for the error in the layer's outputs.
#pragma once

#include <cstdint>
#include <span>

#include "ebb/prune/weights.h"

namespace ebb::prune {

// Replaces the sums of products of a layer's inputs, inputs × inputs, by the upper triangular U
// with UᵀU = H⁻¹. `damping`, a share of the mean of the diagonal, is added to the diagonal first.
// Weights of inputs that are always zero become zero, which changes no output.
void to_inverse_factor(const WeightMatrix& m, std::span<double> hessian, double damping);

// Processes columns [first, last) of one row: each weight w becomes keep(column, w), and the
// weights after it change so that the outputs stay as close as possible. `errors` has room for last
// - first numbers.
template <class Keep>
void spread_row(const WeightMatrix& m, std::span<const double> factor, std::int64_t row,
                std::int64_t first, std::int64_t last, double* errors, const Keep& keep) {
  double* w = m.weights.data() + row * m.inputs;
  for (std::int64_t c = first; c < last; ++c) {
    const double* own = factor.data() + c * m.inputs;
    const double kept = keep(c, w[c]), error = (w[c] - kept) / own[c];
    w[c] = kept;
    errors[c - first] = error;
    if (error != 0.0)
      for (std::int64_t j = c + 1; j < last; ++j) w[j] -= error * own[j];
  }
  // Later columns, once the errors of this block are known.
  for (std::int64_t c = first; c < last; ++c)
    if (const double error = errors[c - first]; error != 0.0) {
      const double* own = factor.data() + c * m.inputs;
      for (std::int64_t j = last; j < m.inputs; ++j) w[j] -= error * own[j];
    }
}

}  // namespace ebb::prune
