// Vectors that are spread over several tensors, such as a gradient in all parameters of a level.
#pragma once

#include <vector>

#include "ebb/tensor.h"

namespace ebb::mlo {

using Vectors = std::vector<Tensor>;  // one tensor for each of some parameters

// a · b, a scalar: float64 if one of the tensors is float64, otherwise float32.
Tensor dot(const Vectors& a, const Vectors& b);
Tensor norm(const Vectors& a);
// a + scale · b, in the types of a; `scale` is a scalar of any floating type.
Vectors add_scaled(const Vectors& a, const Tensor& scale, const Vectors& b);
Vectors add(const Vectors& a, const Vectors& b);
Vectors scaled(const Vectors& a, const Tensor& scale);
Vectors scaled(const Vectors& a, double scale);

}  // namespace ebb::mlo
