// The blocks of a traced model: where each begins and ends, and the products in it.
#pragma once

#include "ebb/prune/structure.h"

namespace ebb::prune {

// The model's variables, inputs, loss, blocks and products, without dimensions. Computes nothing.
Structure trace_blocks(nn::ModuleBase& model, const LossFunction& loss,
                       const std::vector<TensorType>& batch);

// Fills `blocks` and `products`.
void find_blocks(const std::vector<std::shared_ptr<Node>>& nodes, Structure& structure);

// The longest common part of module paths, in whole names.
std::string common_path(const std::vector<std::string_view>& paths);

}  // namespace ebb::prune
