// A tensor that keeps its value between runs: a weight or a piece of optimizer state. Its initial
// value is a lazy tensor that is computed directly into its storage when first needed.
#pragma once

#include "ebb/node.h"
#include "ebb/tensor.h"

namespace ebb {

class Variable : public Tensor {
 public:
  Variable() = default;
  Variable(Tensor initial, Category category = Category::weights);

  // Overwrites the value. The type must match.
  void assign(const Tensor& value);
  void assign_bytes(std::span<const std::byte> bytes);
  bool has_value() const { return node()->storage() != nullptr; }
  // Computes the initial value into the variable's own bytes, if it has none yet.
  void materialise(std::uint64_t seed = 0) const;
};

}  // namespace ebb
