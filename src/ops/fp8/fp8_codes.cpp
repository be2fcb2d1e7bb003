#include <fmt/core.h>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"
#include "ops/fp8/fp8.h"

namespace ebb {
namespace {

const TensorType magnitudes_type{{fp8_parts}, f32}, step_type{{}, f32};

void require_factor(const Call& call) {
  if (call.dtype(0) != bf16) call.fail_dtype("the matrix must be bfloat16");
  call.require_rank(0, 2);
  for (const std::int64_t size : {call.shape(0)[0], call.shape(0)[1]})
    if (size < fp8_unit || size % fp8_unit != 0)
      call.fail_shape(fmt::format("both sizes must be multiples of {}", fp8_unit));
}

std::vector<TensorType> infer_amax(const Call& call, const NoAttributes&) {
  require_factor(call);
  return {magnitudes_type};
}

std::vector<TensorType> infer_quantise(const Call& call, const Fp8QuantiseAttributes& a) {
  require_factor(call);
  if (call.inputs[1] != magnitudes_type)
    call.fail_shape(fmt::format("magnitudes must be {}", to_string(magnitudes_type)));
  const Shape& x = call.shape(0);
  std::vector<TensorType> outputs;
  if (a.makes_plain()) outputs.push_back({x, u8});
  if (a.makes_transposed()) outputs.push_back({{x[1], x[0]}, u8});
  outputs.push_back(step_type);
  return outputs;
}

std::vector<TensorType> infer_fp8_matmul(const Call& call, const Fp8MatmulAttributes& a) {
  if (call.count() != a.inputs())
    call.fail_value(fmt::format("takes {} inputs, but {} came", a.inputs(), call.count()));
  if (a.a == Fp8::e5m2 && a.b == Fp8::e5m2) call.fail_value("one of the formats must be e4m3");
  for (const int input : {0, 1}) {
    call.require_rank(input, 2);
    if (call.dtype(input) != u8) call.fail_dtype("codes must be uint8");
    if (call.inputs[static_cast<std::size_t>(2 + input)] != step_type)
      call.fail_shape("steps must be float32 scalars");
  }
  if (const auto obstacle =
          fp8_obstacle(call.shape(0), call.shape(1), {.transpose_a = false, .transpose_b = true}))
    call.fail_shape(*obstacle);
  if (call.shape(0)[1] != call.shape(1)[1])
    call.fail_shape(fmt::format("inner sizes must agree, but are {} and {}", call.shape(0)[1],
                                call.shape(1)[1]));
  const TensorType result{{call.shape(0)[0], call.shape(1)[0]}, bf16};
  if (a.bias && call.inputs[4] != TensorType{{result.shape[1]}, bf16})
    call.fail_shape(fmt::format("the bias must be {}", to_string({{result.shape[1]}, bf16})));
  if (a.added && call.inputs.back() != result)
    call.fail_shape(fmt::format("the other matrix must be {}, like the product, but is {}",
                                to_string(result), to_string(call.inputs.back())));
  return {result};
}

// What codes stand for, in float64.
Tensor decoded(const Tensor& codes, Fp8 format) {
  const std::array<float, 256> values = fp8_values(format);
  const Tensor table = Tensor::from(std::vector<double>(values.begin(), values.end()), {256, 1});
  return reshape(embedding(table, cast(codes, i64)), codes.shape());
}

std::vector<Tensor> reference_fp8_matmul(std::span<const Tensor> in, const Fp8MatmulAttributes& a) {
  const auto wide = [](const Tensor& t) { return cast(t, f64); };
  Tensor y = matmul(decoded(in[0], a.a), decoded(in[1], a.b), Transpose::no, Transpose::yes) *
             wide(in[2]) * wide(in[3]);
  if (a.bias) y = y + wide(in[4]);
  if (a.added) y = y + wide(in.back());
  return {cast(y, bf16)};
}

template <class A>
bool accepts_rows(const Arg& arg, int input, const A&) {
  return input == 0 ? accepts_fp8_rows(arg) : arg.contiguous();
}

Cost cost_fp8_matmul(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                     const Fp8MatmulAttributes&) {
  Cost result = default_cost(inputs, outputs);
  result.work = Work::product;
  result.flops = 2.0 * static_cast<double>(outputs[0].shape.elements()) *
                 static_cast<double>(inputs[0].shape[1]);
  return result;
}

template <class A, int operations>
Cost cost_of_elements(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
                      const A&) {
  Cost result = default_cost(inputs, outputs);
  result.flops = operations * static_cast<double>(inputs[0].shape.elements());
  return result;
}

}  // namespace

bool accepts_fp8_rows(const Arg& arg) {
  return arg.strides[1] == 1 && arg.strides[0] >= arg.shape()[1];
}

const Op& fp8_amax_op() {
  static const TypedOp<NoAttributes> op({
      .name = "fp8_amax",
      .summary = "the largest magnitudes in parts of a matrix, from which fp8's step follows",
      .infer = infer_amax,
      .gradient = zero_gradient<NoAttributes>,
      .accepts = accepts_rows<NoAttributes>,
      .cpu = bind_fp8_amax_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_fp8_amax_cuda),
      .cost = cost_of_elements<NoAttributes, 1>,
  });
  return op;
}

const Op& fp8_quantise_op() {
  static const TypedOp<Fp8QuantiseAttributes> op({
      .name = "fp8_quantise",
      .summary = "a matrix, its transpose, or both, as codes of 8-bit floating point",
      .infer = infer_quantise,
      .gradient = zero_gradient<Fp8QuantiseAttributes>,
      .accepts = accepts_rows<Fp8QuantiseAttributes>,
      .cpu = bind_fp8_quantise_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_fp8_quantise_cuda),
      .cost = cost_of_elements<Fp8QuantiseAttributes, 4>,
  });
  return op;
}

const Op& fp8_matmul_op() {
  static const TypedOp<Fp8MatmulAttributes> op({
      .name = "fp8_matmul",
      .summary = "products of codes of 8-bit floating point, plus a bias and another matrix",
      .infer = infer_fp8_matmul,
      .reference = reference_fp8_matmul,
      .cpu = bind_fp8_matmul_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_fp8_matmul_cuda),
      .cost = cost_fp8_matmul,
  });
  return op;
}

}  // namespace ebb
