#include "ops/matmul/matmul_then.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/pointwise/pointwise.h"

namespace ebb {
namespace {

// The inputs of the product alone: all but y.
template <class T>
std::span<const T> factors(std::span<const T> inputs) {
  return inputs.first(inputs.size() - 1);
}

const Op& function_op(AfterProduct function) { return pointwise_op(name(function)); }

std::vector<TensorType> infer(const Call& call, const MatmulThenAttributes& a) {
  const int expected = a.bias ? 4 : 3;
  if (call.count() != expected)
    call.fail_value(fmt::format("takes {} inputs, but {} came", expected, call.count()));
  const Call product{call.op, factors(call.inputs), call.device, call.path};
  const TensorType result = matmul_op().infer(product, a.product).front();
  if (call.inputs.back() != result)
    call.fail_shape(fmt::format("y must be {}, like the product, but is {}", to_string(result),
                                to_string(call.inputs.back())));
  return {result};
}

std::vector<Tensor> reference(std::span<const Tensor> in, const MatmulThenAttributes& a) {
  const std::span<const Tensor> first = factors(in);
  const Tensor product =
      apply1(matmul_op(), std::vector<Tensor>(first.begin(), first.end()), a.product);
  return {apply1(function_op(a.function), {product, in.back()})};
}

bool accepts(const Arg& arg, int input, const MatmulThenAttributes& a) {
  return input < 2 ? matmul_op().accepts(arg, input, a.product) : arg.contiguous();
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const MatmulThenAttributes& a) {
  Cost result = matmul_op().cost(factors(inputs), outputs, a.product);
  result.moved += inputs.back().bytes();
  return result;
}

}  // namespace

std::string_view name(AfterProduct function) {
  return after_product_names[static_cast<int>(function)];
}

Kernel bind_matmul_then_apart(const KernelRequest& request, const MatmulThenAttributes& a) {
  const Op& function = function_op(a.function);
  const Kernel first = matmul_op().bind(
      {matmul_op(), factors(request.inputs), request.outputs, request.target}, a.product);
  const std::array operands{request.out(), request.inputs.back()};
  const Kernel then =
      function.bind({function, operands, request.outputs, request.target}, NoAttributes{});
  return {[first, then](const KernelArgs& args) {
            KernelArgs own = args;
            own.inputs = factors(args.inputs);
            first.run(own);
            const std::array<std::byte*, 2> both{args.outputs[0], args.inputs.back()};
            own.inputs = both;
            then.run(own);
          },
          std::max(first.workspace, then.workspace)};
}

const Op& matmul_then_op() {
  static const TypedOp<MatmulThenAttributes> op({
      .name = "matmul_then",
      .summary = "an elementwise function of a matrix product and a tensor like it",
      .infer = infer,
      .reference = reference,
      .accepts = accepts,
      .cpu = bind_matmul_then_apart,
      .cuda = EBB_CUDA_KERNEL(bind_matmul_then_cuda),
      .cost = cost,
  });
  return op;
}

}  // namespace ebb
