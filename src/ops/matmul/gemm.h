// Row-major matrix products on the CPU's BLAS, for kernels that are built from them.
#pragma once

#include <string_view>

#include "ebb/threads.h"
#include "ops/matmul/problem.h"

namespace ebb {

// An error that names the op where a size is more than BLAS takes; to be called when a kernel that
// will call `gemm` with such factors is bound.
void require_gemm_sizes(std::string_view op, const MatrixLayout& a, const MatrixLayout& b,
                        std::int64_t out_lead);

// out (rows, columns) = a · b + beta · out, shared among `workers` threads. Their number changes no
// bit.
void gemm(const MatrixLayout& a, const float* x, const MatrixLayout& b, const float* y, float beta,
          float* out, std::int64_t out_lead, int workers = threads());
void gemm(const MatrixLayout& a, const double* x, const MatrixLayout& b, const double* y,
          double beta, double* out, std::int64_t out_lead, int workers = threads());

}  // namespace ebb
