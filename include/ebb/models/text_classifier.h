// What every model that classifies texts can do.
#pragma once

#include "ebb/tensor.h"

namespace ebb::models {

class TextClassifier {
 public:
  virtual ~TextClassifier() = default;
  // ids (B, T) → (B, classes). `mask` (B, T) is true for real tokens; empty: all are.
  virtual Tensor logits(const Tensor& ids, const Tensor& mask) = 0;
  virtual Tensor loss(const Tensor& ids, const Tensor& labels, const Tensor& mask) = 0;
  virtual std::int64_t classes() const = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t context() const = 0;  // tokens it can see at most
  // Whether each text has one class of several, and not several classes or numbers.
  virtual bool chooses_one() const = 0;
};

}  // namespace ebb::models
