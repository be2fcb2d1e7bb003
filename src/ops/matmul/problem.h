// A bound matrix product: the layouts of both factors, and the matrices of a batch.
#pragma once

#include <utility>

#include "ops/matmul/matmul.h"

namespace ebb {

// The layout of a matrix: element (i, j) is at data[i * row_stride + j * column_stride], and one
// stride is 1.
struct MatrixLayout {
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;

  static MatrixLayout plain(std::int64_t rows, std::int64_t columns) {
    return {rows, columns, columns, 1};
  }
  // A (columns, rows) matrix, read with its axes swapped.
  static MatrixLayout swapped(std::int64_t rows, std::int64_t columns) {
    return {rows, columns, 1, rows};
  }

  bool transposed() const { return column_stride != 1 && columns > 1; }
  std::int64_t leading() const {
    const std::int64_t lead = transposed() ? column_stride : row_stride;
    const std::int64_t least =
        transposed() ? rows : columns;  // a stride that is never used may be anything
    return lead < least ? least : lead;
  }
};

struct MatmulProblem {
  MatrixLayout a, b;  // after transposition
  Shape batch;
  Strides batch_a,
      batch_b;  // elements from one matrix to the next along each leading axis; 0: broadcast
  std::int64_t batches = 1;
  bool bias = false;

  MatmulProblem(const KernelRequest& request, const MatmulAttributes& attributes)
      : a(matrix(request.in(0), attributes.transpose_a)),
        b(matrix(request.in(1), attributes.transpose_b)),
        bias(request.inputs.size() == 3) {
    const Shape& out = request.out().shape();
    for (int i = 0; i < out.rank() - 2; ++i) batch.push_back(out[i]);
    batches = batch.elements();
    const auto strides = [&](const Arg& arg) {
      Strides result;
      const int lead = out.rank() - arg.shape().rank();
      for (int i = 0; i < out.rank() - 2; ++i)
        result.push_back(i < lead || arg.shape()[i - lead] == 1 ? 0 : arg.strides[i - lead]);
      return result;
    };
    batch_a = strides(request.in(0));
    batch_b = strides(request.in(1));
  }

  std::int64_t offset(const Strides& strides, std::int64_t index) const {
    std::int64_t result = 0;
    for (int i = batch.rank() - 1; i >= 0; --i) {
      result += index % batch[i] * strides[i];
      index /= batch[i];
    }
    return result;
  }

 private:
  static MatrixLayout matrix(const Arg& arg, bool transposed) {
    const int r = arg.shape().rank();
    MatrixLayout layout{arg.shape()[r - 2], arg.shape()[r - 1], arg.strides[r - 2],
                        arg.strides[r - 1]};
    if (transposed)
      std::swap(layout.rows, layout.columns), std::swap(layout.row_stride, layout.column_stride);
    return layout;
  }
};

}  // namespace ebb
