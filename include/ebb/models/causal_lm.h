// What every model that predicts the next token can do.
#pragma once

#include "ebb/tensor.h"

namespace ebb::models {

class CausalLm {
 public:
  virtual ~CausalLm() = default;
  virtual Tensor logits(const Tensor& ids) = 0;  // (B, T) → (B, T, vocabulary)
  // The mean over all positions; the logits never exist in full.
  virtual Tensor loss(const Tensor& ids, const Tensor& targets) = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t context() const = 0;  // tokens it can see at most
};

}  // namespace ebb::models
