// Changes a model's matrices block by block, for methods that look at a layer's inputs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ebb/prune/walk.h"
#include "ebb/prune/weights.h"
#include "prune/block_graphs.h"

namespace ebb::prune {

struct MatrixChange {
  InputSum sum = InputSum::none;
  // Changes a matrix in place; may change the sums too. The matrix is stored back in the dtype of
  // the model.
  std::function<void(const nn::NamedVariable& parameter, const WeightMatrix&,
                     std::span<double> sums)>
      change;
  // An upper bound of what `change` allocates for a matrix of this size.
  std::function<Bytes(std::int64_t outputs, std::int64_t inputs)> scratch;
};

// Changes the matrices of products inside the model's blocks, in the order in which they run. The
// inputs of a block are computed through the blocks before it, which have been changed already, and
// through the block itself as it was. Only one block's activations exist at a time. An error of
// `change` names the parameter.
WalkReport change_matrices(nn::ModuleBase& model, const LossFunction& loss,
                           const std::vector<Batch>& batches,
                           const std::vector<TensorType>& batch_types, const MatrixChange& change,
                           const WalkOptions& options = {});

}  // namespace ebb::prune
