#include "prune/cholesky.h"

#include <cmath>
#include <cstddef>

// Fortran's interface, which every LAPACK has; OpenBLAS brings its own.
extern "C" {
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info,
             std::size_t uplo_length);
void dpotri_(const char* uplo, const int* n, double* a, const int* lda, int* info,
             std::size_t uplo_length);
}

namespace ebb::prune {

// LAPACK reads columns, so its lower triangle is the upper one of the rows. A⁻¹ is symmetric, and
// its lower factor L in columns, with L Lᵀ = A⁻¹, is the upper U = Lᵀ in rows.
bool inverse_cholesky(std::span<double> matrix, std::int64_t n) {
  const int size = static_cast<int>(n);
  int info = 0;
  dpotrf_("L", &size, matrix.data(), &size, &info, 1);
  if (info != 0) return false;
  dpotri_("L", &size, matrix.data(), &size, &info, 1);
  if (info != 0) return false;
  dpotrf_("L", &size, matrix.data(), &size, &info, 1);
  if (info != 0) return false;
  for (std::int64_t i = 0; i < n; ++i)  // LAPACK lets NaN through
    if (!std::isfinite(matrix[static_cast<std::size_t>(i * n + i)])) return false;
  for (std::int64_t row = 1; row < n; ++row)
    for (std::int64_t column = 0; column < row; ++column)
      matrix[static_cast<std::size_t>(row * n + column)] = 0.0;
  return true;
}

}  // namespace ebb::prune
