#include "ebb/models/causal_lm.h"

#include "ebb/error.h"
#include "ebb/ops.h"

namespace ebb::models {

Tensor CausalLm::packed_loss(const Tensor&, const Tensor&, const Packing&) {
  throw ValueError("this model cannot keep several texts of one sequence apart");
}

Tensor same_text(const Packing& packing) {
  if (!packing) return {};
  const std::int64_t batch = packing.texts.shape()[0], length = packing.texts.shape()[1];
  return equal(reshape(packing.texts, {batch, 1, length, 1}),
               reshape(packing.texts, {batch, 1, 1, length}));
}

}  // namespace ebb::models
