// The factor that SparseGPT needs, by LAPACK in float64.
#pragma once

#include <cstdint>
#include <span>

namespace ebb::prune {

// Replaces a symmetric positive definite matrix A, n × n, by the upper triangular U, row by row,
// with UᵀU = A⁻¹; below the diagonal are zeros. Returns false if A is not positive definite.
bool inverse_cholesky(std::span<double> matrix, std::int64_t n);

}  // namespace ebb::prune
