// Products of float32 or float64 matrices, on the fastest kernel of this processor: float32 is
// packed (packed_product.h) where there is AVX-512, everything else is BLAS's (gemm.h). The number
// of threads changes no bit.
#pragma once

#include <optional>

#include "ops/matmul/packed_product.h"

namespace ebb {

template <class T>
class MatrixProduct {
 public:
  struct Factors {
    MatrixLayout a;
    const T* x = nullptr;
    MatrixLayout b;
    const T* y = nullptr;
  };

  // For products of (rows, inner) by (inner, columns) matrices, or smaller ones.
  MatrixProduct(std::int64_t rows, std::int64_t inner, std::int64_t columns);

  Bytes workspace() const;

  // Results have rows that lie `stride` elements apart. The bias, of a number a column, may be
  // null.
  void write(const Factors& factors, const T* bias, T* out, std::int64_t stride,
             std::byte* workspace, int workers) const;
  void sum(const Factors& factors, Store store, T* out, std::int64_t stride, std::byte* workspace,
           int workers) const;

 private:
  std::optional<PackedProduct<float>> packed_;
};

extern template class MatrixProduct<float>;
extern template class MatrixProduct<double>;

}  // namespace ebb
