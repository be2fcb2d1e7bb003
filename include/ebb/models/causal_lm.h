// What every model that predicts the next token can do.
#pragma once

#include "ebb/tensor.h"

namespace ebb::models {

// Several texts in one sequence: tokens see those of their own text only.
struct Packing {
  Tensor texts;      // int32 (B, T): the number of each token's text
  Tensor positions;  // int32 (B, T): its place in that text, from 0

  explicit operator bool() const { return static_cast<bool>(texts); }
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

// Boolean (B, 1, T, T) for attention: true for two tokens of one text. Empty without a packing.
Tensor same_text(const Packing& packing);

}  // namespace ebb::models
