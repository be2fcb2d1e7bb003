// The underlying libraries, called without ebb, to compare ebb's kernels with.
#pragma once

#include <cstdint>
#include <functional>

namespace ebb::bench {

// Runs once; owns its buffers.
using Work = std::function<void()>;

// (batch, rows, inner) x (batch, inner, columns) by cblas_sgemm, one call per matrix.
Work library_product(std::int64_t batch, std::int64_t rows, std::int64_t inner,
                     std::int64_t columns);

enum class ConvPass { forward, input_grad, weight_grad };

// x (batch, in, size, size), weight (out, in, kernel, kernel), stride 1, the image kept in size.
struct ConvProblem {
  std::int64_t batch, in, size, out, kernel;
};

// A convolution by oneDNN from plain tensors to plain tensors, the whole batch at once. The faster
// of two ways: with the formats that oneDNN chooses itself, including the reorders they need, or in
// plain NCHW.
Work library_convolution(ConvPass pass, const ConvProblem& problem);

}  // namespace ebb::bench
