// Operands of attention and of its gradient, in order; the mask is optional (see attention.h).
#pragma once

namespace ebb {

struct Attention {
  enum Input : int { q, k, v, mask };
  enum Output : int { o, logsumexp };
};
struct AttentionGrad {
  enum Input : int { q, k, v, o, logsumexp, grad, mask };
};

}  // namespace ebb
