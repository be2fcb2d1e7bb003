// Pruning single weights block by block.
#include <fmt/core.h>

#include <algorithm>

#include "ebb/error.h"
#include "ebb/prune/weights.h"
#include "prune/block_walk.h"

namespace ebb::prune {

namespace {

// Memory that the methods of weights.cpp allocate: scores, marks and an order.
Bytes scratch(Method method, const Sparsity& sparsity, const SparseGptOptions& options,
              std::int64_t outputs, std::int64_t inputs) {
  constexpr std::int64_t score = sizeof(double), mark = 1, place = sizeof(std::int64_t);
  const std::int64_t weights = outputs * inputs;
  switch (method) {
    case Method::magnitude:
      return {weights * (score + mark + (sparsity.pattern ? 0 : place))};
    case Method::wanda:
      return {weights * (score + mark) + inputs * place};
    case Method::sparsegpt:
      break;
  }
  return {outputs * std::min(options.block, inputs) * (2 * score + mark + place)};
}

}  // namespace

PrunedWeights prune_weights(nn::ModuleBase& model, const LossFunction& loss,
                            const std::vector<Batch>& batches,
                            const std::vector<TensorType>& batch_types, Method method,
                            const Sparsity& sparsity, const SparseGptOptions& options,
                            const WalkOptions& walk) {
  if (method != Method::magnitude && batches.empty())
    throw ValueError(fmt::format("prune: {} needs data", name(method)));
  PrunedWeights report;
  MatrixChange change;
  change.sum = method == Method::magnitude ? InputSum::none
               : method == Method::wanda   ? InputSum::squares
                                           : InputSum::products;
  change.change = [&](const nn::NamedVariable&, const WeightMatrix& m, std::span<double> sums) {
    if (method == Method::magnitude)
      prune_by_magnitude(m, sparsity);
    else if (method == Method::wanda)
      prune_by_wanda(m, sums, sparsity);
    else
      prune_by_sparsegpt(m, sums, sparsity, options);
    ++report.matrices;
    report.weights += static_cast<std::int64_t>(m.weights.size());
    report.zeros += std::count(m.weights.begin(), m.weights.end(), 0.0);
  };
  change.scratch = [&](std::int64_t outputs, std::int64_t inputs) {
    return scratch(method, sparsity, options, outputs, inputs);
  };
  report.walk = change_matrices(model, loss, batches, batch_types, change, walk);
  return report;
}

}  // namespace ebb::prune
