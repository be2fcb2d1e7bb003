// Row-major matrix products on the CPU's BLAS, for kernels that are built from them.
#pragma once

#include <cblas.h>

#include "ops/matmul/problem.h"

namespace ebb {

inline void gemm(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y,
                 float beta, float* out, int out_lead) {
  cblas_sgemm(CblasRowMajor, a.transposed() ? CblasTrans : CblasNoTrans,
              b.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(a.rows),
              static_cast<int>(b.columns), static_cast<int>(a.columns), 1.0f, x,
              static_cast<int>(a.leading()), y, static_cast<int>(b.leading()), beta, out, out_lead);
}

inline void gemm(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
                 double beta, double* out, int out_lead) {
  cblas_dgemm(CblasRowMajor, a.transposed() ? CblasTrans : CblasNoTrans,
              b.transposed() ? CblasTrans : CblasNoTrans, static_cast<int>(a.rows),
              static_cast<int>(b.columns), static_cast<int>(a.columns), 1.0, x,
              static_cast<int>(a.leading()), y, static_cast<int>(b.leading()), beta, out, out_lead);
}

}  // namespace ebb
