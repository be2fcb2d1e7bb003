#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/fp8/fp8.h"

namespace ebb {
namespace {

// The format of a gradient that is multiplied by a factor of this format.
Fp8 gradient_format(Fp8 other) { return other == Fp8::e5m2 ? Fp8::e4m3 : Fp8::e5m2; }

std::vector<TensorType> infer_product(const Call& call, const Fp8ProductAttributes& a) {
  if (call.dtype(0) != bf16) call.fail_dtype("factors that are rounded to fp8 must be bfloat16");
  if (a.a == Fp8::e5m2 && a.b == Fp8::e5m2) call.fail_value("one of the formats must be e4m3");
  if (const auto obstacle = fp8_obstacle(call.shape(0), call.shape(1), a.product))
    call.fail_shape(*obstacle);
  return matmul_op().infer(call, a.product);
}

std::vector<Tensor> gradient_product(const GradientCall& call, const Fp8ProductAttributes& at) {
  const bool ta = at.product.transpose_a, tb = at.product.transpose_b;
  const auto product = [](const Tensor& x, const Tensor& y, bool tx, bool ty, Fp8 fx, Fp8 fy) {
    return apply1(fp8_product_op(), {x, y}, Fp8ProductAttributes{{tx, ty}, fx, fy});
  };
  const Tensor g = call.grad();
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (call.needs(0)) {
    const Tensor& b = call.input(1);
    const Fp8 own = gradient_format(at.b);
    result[0] = ta ? product(b, g, tb, true, at.b, own) : product(g, b, false, !tb, own, at.b);
  }
  if (call.needs(1)) {
    const Tensor& a = call.input(0);
    const Fp8 own = gradient_format(at.a);
    result[1] = tb ? product(g, a, true, ta, own, at.a) : product(a, g, !ta, false, at.a, own);
  }
  if (call.input_count() == 3 && call.needs(2)) result[2] = sum_to(g, call.input_type(2).shape);
  return result;
}

// What the pass `share_codes` makes of one product alone.
std::vector<Tensor> reference_product(std::span<const Tensor> in, const Fp8ProductAttributes& at) {
  using Codes = Fp8QuantiseAttributes::Codes;
  const auto codes = [](const Tensor& x, Fp8 format, bool transposed) {
    return apply(fp8_quantise_op(), {x, apply1(fp8_amax_op(), {x}, NoAttributes{})},
                 Fp8QuantiseAttributes{format, transposed ? Codes::transposed : Codes::plain});
  };
  const std::vector<Tensor> a = codes(in[0], at.a, at.product.transpose_a),
                            b = codes(in[1], at.b, !at.product.transpose_b);
  std::vector<Tensor> inputs{a[0], b[0], a[1], b[1]};
  if (in.size() == 3) inputs.push_back(in[2]);
  return {apply1(fp8_matmul_op(), std::move(inputs),
                 Fp8MatmulAttributes{.a = at.a, .b = at.b, .bias = in.size() == 3})};
}

bool accepts_factors(const Arg& arg, int input, const Fp8ProductAttributes&) {
  return input < 2 ? accepts_fp8_rows(arg) : arg.contiguous();
}

Cost cost_product(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                  const Fp8ProductAttributes& a) {
  return matmul_op().cost(inputs, outputs, a.product);
}

}  // namespace

std::optional<std::string> fp8_obstacle(const Shape& a, const Shape& b,
                                        const MatmulAttributes& product) {
  if (a.rank() != 2 || b.rank() != 2) return "both factors must be matrices";
  const std::int64_t rows = a[product.transpose_a ? 1 : 0], inner = a[product.transpose_a ? 0 : 1],
                     columns = b[product.transpose_b ? 0 : 1];
  for (const std::int64_t size : {rows, inner, columns})
    if (size < fp8_unit || size % fp8_unit != 0)
      return fmt::format("{} × {} by {} × {}: not every size is a multiple of {}", rows, inner,
                         inner, columns, fp8_unit);
  return {};
}

const Op& fp8_product_op() {
  static const TypedOp<Fp8ProductAttributes> op({
      .name = "fp8_product",
      .summary = "a product of bfloat16 matrices that are rounded to 8 bits; a pass replaces it",
      .infer = infer_product,
      .gradient = gradient_product,
      .saved = {.inputs = {0, 1}, .outputs = {}},
      .reference = reference_product,
      .accepts = accepts_factors,
      .cpu = bind_fp8_product_apart,
      .cuda = EBB_CUDA_KERNEL(bind_fp8_product_apart),
      .cost = cost_product,
  });
  return op;
}

}  // namespace ebb
