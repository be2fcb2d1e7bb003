// Training in half precision: the dtypes in which a step stores and computes. docs/precision.md
// says what each choice costs and when to use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/graph.h"
#include "ebb/tensor.h"

namespace ebb {

enum class Precision : std::uint8_t {
  fp32,        // all float32
  mixed_fp16,  // products and activations in float16, weights in float32, the loss scaled
  mixed_bf16,  // products and activations in bfloat16, weights in float32
  pure_bf16,   // weights, gradients and state in bfloat16 too; stochastic rounding of updates
  split_bf16,  // weights in bfloat16 plus the lower bits that updates need
  fp8,         // the same, with products inside blocks of factors in 8-bit floating point
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
  // How products of two matrices inside blocks (elements of a List) are computed. In fp8 both
  // factors are rounded to 8 bits, and in backward the gradients too; `half` must be bfloat16.
  // Products with a size that is not a multiple of 16 stay in half precision.
  enum class BlockProducts : std::uint8_t { half, fp8 };

  explicit HalfPrecision(DType half,  // float16 or bfloat16
                         BlockProducts products = BlockProducts::half);
  ~HalfPrecision();
  HalfPrecision(HalfPrecision&&) noexcept;

  // The same values, computed in half precision. Results keep their dtype: a loss stays float32.
  std::vector<Tensor> operator()(const std::vector<Tensor>& values);

 private:
  class Rewriting;
  std::unique_ptr<Rewriting> rewriting_;
};

// The products of a step that is traced in fp8.
struct Fp8Products {
  struct Other {
    std::string path;      // of the module
    std::string obstacle;  // why it is not in fp8
  };
  std::int64_t in_fp8 = 0;    // of forward and backward together
  std::vector<Other> others;  // of forward, inside blocks, that stay in half precision
};
// `graph`: as it was traced, before any pass.
Fp8Products fp8_products(const Graph& graph);

}  // namespace ebb
