// A product with a fused epilogue: an elementwise function of the product and a tensor of its
// shape. Libraries apply it while the product is in registers, so that the product itself is never
// written.
#pragma once

#include "ops/matmul/matmul.h"

namespace ebb {

// f(product, y), as the ops of these names compute it.
enum class AfterProduct : std::uint8_t { add, gelu_tanh_grad };
inline constexpr std::string_view after_product_names[] = {"add", "gelu_tanh_grad"};
std::string_view name(AfterProduct function);

// Inputs: the factors a and b, a bias if there is one, and y, of the product's shape and dtype.
struct MatmulThenAttributes {
  MatmulAttributes product;
  bool bias = false;
  AfterProduct function = AfterProduct::add;
  bool operator==(const MatmulThenAttributes&) const = default;
  void visit(auto&& field) {
    product.visit(field);
    field("bias", bias);
    field.choice("function", function, after_product_names);
  }
};

const Op& matmul_then_op();

// The product's kernel followed by the function's kernel, if a library has no fused kernel.
Kernel bind_matmul_then_apart(const KernelRequest& request, const MatmulThenAttributes& attributes);
Kernel bind_matmul_then_cuda(const KernelRequest& request, const MatmulThenAttributes& attributes);

}  // namespace ebb
