// What every model that predicts masked words can do.
#pragma once

#include "ebb/tensor.h"

namespace ebb::models {

class MaskedLm {
 public:
  virtual ~MaskedLm() = default;
  // ids (B, T) → (B, T, vocabulary). `mask` (B, T) is true for real tokens; empty: all are.
  virtual Tensor logits(const Tensor& ids, const Tensor& mask) = 0;
  // The mean over the targets (B, T) that are not -100.
  virtual Tensor loss(const Tensor& ids, const Tensor& targets, const Tensor& mask) = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t context() const = 0;  // tokens it can see at most
};

}  // namespace ebb::models
