// Row-major matrix products on the CPU's BLAS, for kernels that are built from them.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace ebb {

// A matrix as it lies: element (i, j) at data[i * row_stride + j * column_stride], one stride
// being 1.
struct MatrixLayout {
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  bool transposed() const { return column_stride != 1 && columns > 1; }
  int leading() const {
    const std::int64_t lead = transposed() ? column_stride : row_stride;
    const std::int64_t least =
        transposed() ? rows : columns;  // a stride that is never used may be anything
    return static_cast<int>(lead < least ? least : lead);
  }
};

inline void gemm(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y,
                 float beta, float* out, int out_lead) {
  cblas_sgemm(CblasRowMajor, a.transposed() ? CblasTrans : CblasNoTrans,
              b.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(a.rows),
              static_cast<int>(b.columns), static_cast<int>(a.columns), 1.0f, x, a.leading(), y,
              b.leading(), beta, out, out_lead);
}

inline void gemm(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
                 double beta, double* out, int out_lead) {
  cblas_dgemm(CblasRowMajor, a.transposed() ? CblasTrans : CblasNoTrans,
              b.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(a.rows),
              static_cast<int>(b.columns), static_cast<int>(a.columns), 1.0, x, a.leading(), y,
              b.leading(), beta, out, out_lead);
}

}  // namespace ebb
