// Whether bytes from elsewhere are a matrix of the pattern 2:4, or positions of one (ebb/pairs.h).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ebb/tensor.h"

namespace ebb {

// What is wrong with a matrix in which four neighbours along the inputs have more than two weights
// other than zero: the first such four. `type` is (outputs, inputs) or its transpose, with a
// multiple of 4 inputs.
std::optional<std::string> pattern_fault(std::span<const std::byte> matrix, const TensorType& type,
                                         bool transposed);

// The same for positions (⌈inputs / 8⌉ bytes for each output): two bits of each four must be set,
// and none beyond the inputs.
std::optional<std::string> positions_fault(std::span<const std::byte> positions,
                                           std::int64_t outputs, std::int64_t inputs);

}  // namespace ebb
