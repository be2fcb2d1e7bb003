// Products of up to eight rows by a matrix on a GPU, as in generation: the matrix is read once, at
// the speed of the memory. Each element of the result is summed in an order that depends on the
// sizes of the matrix alone: other rows change no bit.
#pragma once

#include <optional>

#include "ops/matmul/problem.h"

namespace ebb::cuda {

// The kernel of out = a · b [+ bias] [+ other], or nothing where it does not take such a product:
// float32 and half types, one matrix, rows that can be read 16 bytes at a time. `bias` and `other`:
// their numbers among the inputs, or -1; `other` lies as the result does.
std::optional<Kernel> few_rows_kernel(const KernelRequest& request, const MatmulProblem& problem,
                                      int bias, int other);

}  // namespace ebb::cuda
