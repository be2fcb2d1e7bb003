// Training in half precision: the dtypes in which a step stores and computes. docs/precision.md
// says what each choice costs and when to use it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ebb/tensor.h"

namespace ebb {

enum class Precision : std::uint8_t {
  fp32,        // all float32
  mixed_fp16,  // products and activations in float16, weights in float32, the loss scaled
  mixed_bf16,  // products and activations in bfloat16, weights in float32
  pure_bf16,   // weights, gradients and state in bfloat16 too; stochastic rounding of updates
  split_bf16,  // weights in bfloat16 plus the lower bits that updates need
};

std::string_view name(Precision precision);  // "fp16", "pure-bf16"
// The precision of that name. Throws a ValueError that lists all names.
Precision precision_by_name(std::string_view name);

// The dtype of products, and the dtype in which a model's parameters must be made.
DType product_dtype(Precision precision);
DType parameter_dtype(Precision precision);

// Rewrites a traced forward computation so that products and what follows them are in half
// precision, by the rule in each op's record (Narrowing, op.h). It is applied before
// differentiation, so that backward is in half precision where forward is. One object casts a
// variable once for all graphs that it rewrites.
class HalfPrecision {
 public:
  explicit HalfPrecision(DType half);  // float16 or bfloat16
  ~HalfPrecision();
  HalfPrecision(HalfPrecision&&) noexcept;

  // The same values, computed in half precision. Results keep their dtype: a loss stays float32.
  std::vector<Tensor> operator()(const std::vector<Tensor>& values);

 private:
  class Rewriting;
  std::unique_ptr<Rewriting> rewriting_;
};

}  // namespace ebb
