// What every model that predicts the next token can do.
#pragma once

#include "ebb/tensor.h"

namespace ebb::models {

// Several texts packed into one sequence. A token attends only to tokens of its own text.
struct Packing {
  Tensor positions;  // int32 (B, T): each token's place in its text, from 0

  explicit operator bool() const { return static_cast<bool>(positions); }
};

class CausalLm {
 public:
  virtual ~CausalLm() = default;
  virtual Tensor logits(const Tensor& ids) = 0;  // (B, T) → (B, T, vocabulary)
  // The mean over all positions; the logits never exist in full.
  virtual Tensor loss(const Tensor& ids, const Tensor& targets) = 0;
  // The same for packed texts. An error for a model that cannot keep texts apart.
  virtual Tensor packed_loss(const Tensor& ids, const Tensor& targets, const Packing& packing);
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t context() const = 0;  // tokens it can see at most
};

// The mask for causal attention over x (B, T, width): int32 (B or 1, 1, T, 1), the first token that
// each token sees. A token sees only tokens of its own text and, of these, the last `window`
// including itself (0: all). Empty if every token sees all tokens before it.
Tensor first_seen(const Tensor& x, const Packing& packing, std::int64_t window = 0);

}  // namespace ebb::models
