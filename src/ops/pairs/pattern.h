// Checks whether bytes from a file are a matrix of the pattern 2:4, or its positions (ebb/pairs.h).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ebb/tensor.h"

namespace ebb {

// Describes the first four neighbours along the inputs with more than two weights other than zero;
// nothing if the matrix has the pattern. `type` is (outputs, inputs) or its transpose, with a
// multiple of 4 inputs.
std::optional<std::string> pattern_fault(std::span<const std::byte> matrix, const TensorType& type,
                                         bool transposed);

// The same for positions (⌈inputs / 8⌉ bytes for each output): two bits of each four must be set,
// and none beyond the inputs.
std::optional<std::string> positions_fault(std::span<const std::byte> positions,
                                           std::int64_t outputs, std::int64_t inputs);

}  // namespace ebb
