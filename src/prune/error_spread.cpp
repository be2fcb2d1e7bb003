#include "prune/error_spread.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "prune/cholesky.h"

namespace ebb::prune {

void to_inverse_factor(const WeightMatrix& m, std::span<double> hessian, double damping) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t n = m.inputs;
  if (hessian.size() != at(n * n))
    throw ShapeError(
        fmt::format("prune: the sums of products of {} inputs are {} × {} numbers, but "
                    "{} came",
                    n, n, n, hessian.size()));
  double trace = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    double& diagonal = hessian[at(i * n + i)];
    if (diagonal == 0.0) {
      diagonal = 1.0;
      for (std::int64_t r = 0; r < m.outputs; ++r) m.weights[at(r * n + i)] = 0.0;
    }
    trace += diagonal;
  }
  for (std::int64_t i = 0; i < n; ++i)
    hessian[at(i * n + i)] += damping * trace / static_cast<double>(n);
  if (!inverse_cholesky(hessian, n))
    throw ValueError(
        "prune: the sums of products of the inputs are not positive definite: they are not finite, "
        "or more damping is needed");
}

}  // namespace ebb::prune
