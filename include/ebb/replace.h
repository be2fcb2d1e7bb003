// Substitutes tensors for the leaves (variables, inputs, constants) of a computation.
#pragma once

#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ebb/node.h"
#include "ebb/tensor.h"

namespace ebb {

// The replacement of a variable, input or constant; the types must match.
using Replacements = std::unordered_map<Tensor, Tensor>;

// `outputs` with the leaves replaced. Nodes that depend on none of them are shared with the old
// graph; the others are copied, with their attributes: random nodes keep their keys, so both
// computations draw the same numbers in one run. Blocks and regions of the copies are new ones, or
// all copies carry `marks`.
std::vector<Tensor> replace(std::span<const Tensor> outputs, const Replacements& replacements,
                            const std::optional<Marks>& marks = {});
Tensor replace(const Tensor& output, const Replacements& replacements);

}  // namespace ebb
