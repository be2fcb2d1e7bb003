// Single weights set to zero: any share of a matrix, or N of every M in a row.
//
// Matrices are (outputs, inputs) in float64, row by row. All methods change them in place and are
// deterministic: of equal scores the first weight goes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/masks.h"
#include "ebb/models/causal_lm.h"
#include "ebb/nn/module.h"
#include "ebb/prune/walk.h"
#include "ebb/train/train_step.h"

namespace ebb::prune {

using ebb::Pattern;
using ebb::pattern_named;

// How much is removed: a share of each matrix, or a pattern.
struct Sparsity {
  double share = 0.5;
  std::optional<Pattern> pattern = {};
};

struct WeightMatrix {
  std::int64_t outputs = 0, inputs = 0;
  std::span<double> weights;  // outputs × inputs
};

// Removes the smallest |w| of the matrix.
void prune_by_magnitude(const WeightMatrix& matrix, const Sparsity& sparsity);

// Wanda (Sun et al. 2023): removes the smallest |w_ij| · ‖x_j‖ of each row. `squares` has ‖x_j‖²
// for each input, summed over the data.
void prune_by_wanda(const WeightMatrix& matrix, std::span<const double> squares,
                    const Sparsity& sparsity);

struct SparseGptOptions {
  double damping = 0.01;     // added to the diagonal, as a share of its mean
  std::int64_t block = 128;  // columns whose weights are chosen together
};

// SparseGPT (Frantar and Alistarh 2023): removes the weights with the least w² / [H⁻¹]², column by
// column; later columns compensate for the error. `hessian` is 2 / N Σ x xᵀ over N inputs x, a
// matrix of inputs × inputs. It is overwritten.
void prune_by_sparsegpt(const WeightMatrix& matrix, std::span<double> hessian,
                        const Sparsity& sparsity, const SparseGptOptions& options = {});

enum class Method : std::uint8_t { magnitude, wanda, sparsegpt };
Method method_named(std::string_view name);  // a ValueError lists the names
std::string_view name(Method method);

struct PrunedWeights {
  std::int64_t matrices = 0, weights = 0, zeros = 0;  // of the matrices that were pruned
  WalkReport walk = {};
};

// Prunes the matrices of products inside the model's blocks, in place; embeddings and the output
// layer stay as they are. Wanda and SparseGPT read `batches`, all of one type: the inputs of a
// block are computed through the blocks before it, which have been pruned already. Only one block's
// activations exist at a time, and with a store only one block's weights.
PrunedWeights prune_weights(nn::ModuleBase& model, const LossFunction& loss,
                            const std::vector<Batch>& batches,
                            const std::vector<TensorType>& batch_types, Method method,
                            const Sparsity& sparsity, const SparseGptOptions& options = {},
                            const WalkOptions& walk = {});

}  // namespace ebb::prune
