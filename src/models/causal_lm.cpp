#include "ebb/models/causal_lm.h"

#include "ebb/error.h"
#include "ebb/ops.h"

namespace ebb::models {

Tensor CausalLm::packed_loss(const Tensor&, const Tensor&, const Packing&) {
  throw ValueError("this model cannot keep several texts of one sequence apart");
}

Tensor first_seen(const Tensor& x, const Packing& packing, std::int64_t window) {
  const std::int64_t length = x.shape()[1];
  const Tensor token = arange(length, i32, x.device());
  Tensor first;  // (B, T) or (1, T)
  if (packing) first = token - packing.positions;
  if (window > 0 && window < length) {
    const Tensor near = unsqueeze(token - static_cast<double>(window - 1), 0);
    first = first ? maximum(first, near) : near;
  }
  return first ? reshape(first, {first.shape()[0], 1, length, 1}) : first;
}

}  // namespace ebb::models
