#include "ops/matmul/matmul.h"

#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const MatmulAttributes& a) {
  call.require_floating(0);
  call.require_same_dtype(0, 1);
  const Shape &x = call.shape(0), &y = call.shape(1);
  if (x.rank() < 2 || y.rank() < 2) call.fail_shape("both factors must have at least two axes");
  const std::int64_t m = x[x.rank() - (a.transpose_a ? 1 : 2)],
                     k = x[x.rank() - (a.transpose_a ? 2 : 1)];
  const std::int64_t inner = y[y.rank() - (a.transpose_b ? 1 : 2)],
                     n = y[y.rank() - (a.transpose_b ? 2 : 1)];
  if (k != inner)
    call.fail_shape(fmt::format("inner sizes must agree, but are {} and {} ({})", k, inner,
                                "transposed as asked"));
  Shape lead_x = x, lead_y = y, shape;
  for (Shape* lead : {&lead_x, &lead_y})
    lead->erase(lead->rank() - 1), lead->erase(lead->rank() - 1);
  if (!broadcast(lead_x, lead_y, shape)) call.fail_shape("leading axes do not broadcast");
  shape.push_back(m);
  shape.push_back(n);
  if (call.count() == 3) {
    call.require_same_dtype(0, 2);
    if (call.shape(2) != Shape{n})
      call.fail_shape(fmt::format("the bias must have shape ({},)", n));
  }
  return {{shape, call.dtype(0)}};
}

std::vector<Tensor> gradient(const GradientCall& call, const MatmulAttributes& attributes) {
  const auto flip = [](bool transposed) { return transposed ? Transpose::no : Transpose::yes; };
  const auto same = [](bool transposed) { return transposed ? Transpose::yes : Transpose::no; };
  const bool ta = attributes.transpose_a, tb = attributes.transpose_b;
  const Tensor g = call.grad();
  std::vector<Tensor> result(static_cast<std::size_t>(call.input_count()));
  if (call.needs(0)) {
    const Tensor& b = call.input(1);
    result[0] =
        sum_to(ta ? matmul(b, g, same(tb), Transpose::yes) : matmul(g, b, Transpose::no, flip(tb)),
               call.input_type(0).shape);
  }
  if (call.needs(1)) {
    const Tensor& a = call.input(0);
    result[1] =
        sum_to(tb ? matmul(g, a, Transpose::yes, same(ta)) : matmul(a, g, flip(ta), Transpose::no),
               call.input_type(1).shape);
  }
  if (call.input_count() == 3 && call.needs(2)) result[2] = sum_to(g, call.input_type(2).shape);
  return result;
}

// Two axes with one of them contiguous and rows that do not overlap: what a BLAS can read.
bool accepts(const Arg& arg, int input, const MatmulAttributes&) {
  if (input == 2) return arg.contiguous();
  const int r = arg.shape().rank();
  const auto usable = [&](int row, int column) {
    return (arg.strides[column] == 1 || arg.shape()[column] == 1) &&
           (arg.strides[row] >= arg.shape()[column] || arg.shape()[row] == 1);
  };
  return usable(r - 2, r - 1) || usable(r - 1, r - 2);
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const MatmulAttributes& a) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::product;
  const Shape& x = inputs[0].shape;
  // Products use packed copies of their factors; for narrow factors, packing takes much of the
  // time.
  constexpr double packing = 24.0;
  result.flops = 2.0 * static_cast<double>(outputs[0].shape.elements()) *
                     static_cast<double>(x[x.rank() - (a.transpose_a ? 2 : 1)]) +
                 packing * static_cast<double>(x.elements() + inputs[1].shape.elements());
  return result;
}

// If the other factor is a matrix, folds the leading axes of x into its rows: one large product,
// and the matrix's gradient needs no sum over a batch.
Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias,
               const MatmulAttributes& attributes) {
  const auto inputs = [&](const Tensor& x) {
    return bias ? std::vector{x, b, bias} : std::vector{x, b};
  };
  if (!a || !b || a.rank() <= 2 || b.rank() != 2 || attributes.transpose_a)
    return apply1(matmul_op(), inputs(a), attributes);
  Shape shape = a.shape();
  shape.erase(shape.rank() - 1);
  const Tensor flat =
      apply1(matmul_op(), inputs(reshape(a, {shape.elements(), a.shape().back()})), attributes);
  shape.push_back(flat.shape().back());
  return reshape(flat, shape);
}

}  // namespace

const Op& matmul_op() {
  static const TypedOp<MatmulAttributes> op({
      .name = "matmul",
      .summary = "matrix products over leading axes, plus a bias",
      .infer = infer,
      .gradient = gradient,
      .saved = {.inputs = {0, 1}, .outputs = {}},
      .accepts = accepts,
      .cpu = bind_matmul_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_matmul_cuda),
      .cost = cost,
      .narrowing = Narrowing::sought,
  });
  return op;
}

Tensor matmul(const Tensor& a, const Tensor& b, Transpose transpose_a, Transpose transpose_b) {
  return product(a, b, {}, {transpose_a == Transpose::yes, transpose_b == Transpose::yes});
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout) {
  return product(x, weight, bias,
                 {.transpose_a = false, .transpose_b = layout == WeightLayout::out_in});
}

}  // namespace ebb
