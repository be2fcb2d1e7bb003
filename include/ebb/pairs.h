// Matrices of the pattern 2:4 without their zeros: of every four neighbours in a row, two are kept.
// A matrix (rows, columns) is stored as
//
//   values     (rows, columns / 2), the kept ones in order, in any floating dtype
//   positions  (rows, ⌈columns / 8⌉), bytes: bit j of byte i is set if column 8 · i + j is kept
//
// which in bfloat16 takes 9/16 of the bytes. Values can be trained: their gradient, and an
// optimizer's state for them, have half the elements of the matrix. nn::PairLinear is a layer of
// it.
#pragma once

#include "ebb/tensor.h"

namespace ebb {

// The type of the positions of a matrix; `columns` is a multiple of 4.
TensorType positions_type(std::int64_t rows, std::int64_t columns);

// The positions of the two largest magnitudes in each group of four; of equal ones the first. NaN
// is always kept. Has no gradient.
Tensor choose_pairs(const Tensor& matrix);

// The values at the positions, and the matrix with these values and zeros elsewhere. Each is the
// gradient of the other.
Tensor take_pairs(const Tensor& matrix, const Tensor& positions);
Tensor spread_pairs(const Tensor& values, const Tensor& positions);

// x (..., columns) · Wᵀ + bias → (..., rows). The matrix W itself is never in memory as a whole;
// the gradient of the values passes through one product of its size.
Tensor pair_linear(const Tensor& x, const Tensor& values, const Tensor& positions,
                   const Tensor& bias = {});

}  // namespace ebb
