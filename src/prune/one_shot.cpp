// Pruning single weights block by block.
#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/prune/weights.h"
#include "prune/block_walk.h"

namespace ebb::prune {

PrunedWeights prune_weights(nn::ModuleBase& model, const LossFunction& loss,
                            const std::vector<Batch>& batches,
                            const std::vector<TensorType>& batch_types, Method method,
                            const Sparsity& sparsity, const SparseGptOptions& options) {
  if (method != Method::magnitude && batches.empty())
    throw ValueError(fmt::format("prune: {} needs data", name(method)));
  const InputSum sum = method == Method::magnitude ? InputSum::none
                       : method == Method::wanda   ? InputSum::squares
                                                   : InputSum::products;
  PrunedWeights report;
  change_matrices(model, loss, batches, batch_types, sum,
                  [&](const nn::NamedVariable&, const WeightMatrix& m, std::vector<double>& sums) {
                    if (method == Method::magnitude)
                      prune_by_magnitude(m, sparsity);
                    else if (method == Method::wanda)
                      prune_by_wanda(m, sums, sparsity);
                    else
                      prune_by_sparsegpt(m, sums, sparsity, options);
                    ++report.matrices;
                    report.weights += static_cast<std::int64_t>(m.weights.size());
                    report.zeros += std::count(m.weights.begin(), m.weights.end(), 0.0);
                  });
  return report;
}

}  // namespace ebb::prune
