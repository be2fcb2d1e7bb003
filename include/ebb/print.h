// Tensors as text, for people who look at them.
//
//   std::cout << x;   // float32 (2, 3) [[1, 2, 3], [4, 5, 6]]
#pragma once

#include <iosfwd>
#include <string>

#include "ebb/tensor.h"

namespace ebb {

// The type and the values; the tensor is computed for this. Of an axis with more than six entries
// the first and last three are shown, unless the tensor has at most 64 elements. Only the type is
// shown for more than 2^20 elements, and for a tensor that has no value because it depends on an
// input of a step.
std::string to_string(const Tensor& tensor);
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace ebb
