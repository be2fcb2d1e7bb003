// Row-major matrix products on the CPU's BLAS, for kernels that are built from them.
#pragma once

#include "ebb/threads.h"
#include "ops/matmul/problem.h"

namespace ebb {

// out (rows, columns) = a · b + beta · out, shared among `workers` threads. Their number changes no
// bit.
void gemm(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y, float beta,
          float* out, std::int64_t out_lead, int workers = threads());
void gemm(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
          double beta, double* out, std::int64_t out_lead, int workers = threads());

}  // namespace ebb
