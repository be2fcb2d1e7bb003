// Products with few rows: a vector, or a few of them, times a matrix, as in generation. Reading the
// matrix takes nearly all of the time, so it is read once, in its own dtype and layout. Each
// element of the result is summed in an order that depends on the inner size alone: the other rows
// and the number of threads change no bit.
#pragma once

#include "ebb/bytes.h"
#include "ops/matmul/problem.h"

namespace ebb {

class FewRowsProduct {
 public:
  static constexpr std::int64_t most_rows = 8;
  // The least number of elements of the matrix: below it a library's overhead does not count.
  static constexpr std::int64_t least_elements = 16384;

  // Whether it computes this product: float32 and half types, one matrix.
  static bool takes(const MatmulProblem& problem, DType dtype);

  explicit FewRowsProduct(MatmulProblem problem) : p_(std::move(problem)) {}
  // x in the order in which it is read, and sums in float32.
  Bytes workspace() const;

  // T: float, MachineHalf or BFloat16. `bias` may be null.
  template <class T>
  void run(const T* x, const T* matrix, const T* bias, T* out, std::byte* workspace) const;

 private:
  MatmulProblem p_;
};

}  // namespace ebb
