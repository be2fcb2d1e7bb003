// Losses made of other ops.
#include "ops/loss/loss.h"

#include <fmt/core.h>

#include "ebb/error.h"

namespace ebb {
namespace {

Tensor total(const Tensor& losses) { return sum(cast(losses, statistics_dtype(losses.dtype()))); }

}  // namespace

Tensor reduce_loss(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::none) return losses;
  const double count = static_cast<double>(losses.shape().elements());
  const Tensor all = total(losses);
  return cast(reduction == Reduction::sum ? all : all / count, losses.dtype());
}

Tensor reduce_loss(const Tensor& losses, const Tensor& targets, Reduction reduction,
                   std::int64_t ignore_index) {
  if (reduction != Reduction::mean) return reduce_loss(losses, reduction);
  const Tensor all = total(losses);
  const Tensor valid = ClassTargets(targets, ignore_index).valid;
  return cast(all / sum(cast(valid, all.dtype())), losses.dtype());
}

LossRows::LossRows(std::string_view loss, const Tensor& x, const Tensor& t) {
  Shape lead = x.shape();
  if (lead.rank() > 0) lead.erase(lead.rank() - 1);
  if (x.rank() == 0 || lead != t.shape())
    throw ShapeError(fmt::format(
        "[{}] the targets must have the shape of the first input without its last axis, but are "
        "{} for {}",
        loss, to_string(t.type()), to_string(x.type())));
  const std::int64_t count = lead.elements();
  values = reshape(x, {count, x.shape().back()});
  targets = reshape(t, {count});
}

ClassTargets::ClassTargets(const Tensor& targets, std::int64_t ignore_index)
    : valid(not_equal(targets, scalar_like(targets, static_cast<double>(ignore_index)))),
      index(where(valid, targets, scalar_like(targets, 0.0))) {}

Tensor nll_rows(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index,
                double label_smoothing) {
  const ClassTargets t(targets, ignore_index);
  Tensor rows = -squeeze(gather(log_probabilities, 1, unsqueeze(t.index, 1)), 1);
  if (label_smoothing != 0.0)
    rows = rows * (1.0 - label_smoothing) - mean(log_probabilities, {1}) * label_smoothing;
  return where(t.valid, rows, scalar_like(rows, 0.0));
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                const CrossEntropyOptions& options) {
  const LossRows rows("nll_loss", log_probabilities, targets);
  return reduce_loss(
      reshape(nll_rows(rows.values, rows.targets, options.ignore_index, options.label_smoothing),
              targets.shape()),
      targets, options.reduction, options.ignore_index);
}

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  return reduce_loss(square(a - b), reduction);
}

// -t log σ(x) - (1 - t) log(1 - σ(x)), without the overflow of either logarithm, and without
// taking one large number from another where x is large and t is 1.
Tensor bce_with_logits(const Tensor& x, const Tensor& target, Reduction reduction) {
  return reduce_loss((1.0 - target) * x + softplus(-x), reduction);
}

}  // namespace ebb
