// A model's matrices block by block, as methods that look at a layer's inputs change them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ebb/prune/weights.h"

namespace ebb::prune {

// What a method reads of the inputs x of a layer, over N rows of data.
enum class InputSum : std::uint8_t {
  none,
  squares,   // ‖x_j‖² of each input
  products,  // 2 / N Σ x xᵀ, inputs × inputs
};

// Changes a matrix in place; may change the sums too. The matrix is stored back in the dtype of the
// model.
using ChangeMatrix = std::function<void(const nn::NamedVariable& parameter, const WeightMatrix&,
                                        std::vector<double>& sums)>;

// Calls `change` for the matrices of products inside the model's blocks, in the order in which they
// run. The inputs of a block are computed through the blocks before it, which have been changed
// already. Only one block's activations exist at a time. An error of `change` names the parameter.
void change_matrices(nn::ModuleBase& model, const LossFunction& loss,
                     const std::vector<Batch>& batches, const std::vector<TensorType>& batch_types,
                     InputSum sum, const ChangeMatrix& change);

}  // namespace ebb::prune
