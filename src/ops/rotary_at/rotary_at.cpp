#include "ops/rotary_at/rotary_at.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/decode.h"
#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const RotaryAtAttributes& a) {
  call.require_floating(0);
  call.require_rank(0, 4);
  const Shape& x = call.shape(0);
  if (x.back() % 2 != 0)
    call.fail_shape(fmt::format("the last axis must have an even size, but has {}", x.back()));
  if (call.inputs[1] != TensorType{{x[0], x[2]}, i32})
    call.fail_shape(fmt::format("positions must be {}, but are {}",
                                to_string(TensorType{{x[0], x[2]}, i32}),
                                to_string(call.inputs[1])));
  if (!(a.base > 0.0 && std::isfinite(a.base)))
    call.fail_value(fmt::format("the base must be positive and finite, but is {}", a.base));
  return {call.inputs[0]};
}

std::vector<Tensor> reference(std::span<const Tensor> inputs, const RotaryAtAttributes& a) {
  const Tensor& x = inputs[0];
  const DType dtype = x.dtype() == f64 ? f64 : f32;
  const std::int64_t batch = x.shape()[0], tokens = x.shape()[2], pairs = x.shape()[3] / 2;
  const Tensor speed =
      exp(arange(pairs, f64, x.device()) *
          (-std::log(a.base) / static_cast<double>(std::max<std::int64_t>(pairs, 1))));
  const Tensor place = cast(maximum(inputs[1], scalar_like(inputs[1], 0.0)), f64);
  const Tensor angle = reshape(place, {batch, 1, tokens, 1}) * speed;  // (B, 1, T, D/2)
  const Tensor c = cast(cos(angle), dtype), s = cast(sin(angle), dtype);
  const std::vector<Tensor> halves = chunk(cast(x, dtype), -1, 2);
  return {
      cast(concat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1), x.dtype())};
}

bool accepts(const Arg& arg, int input, const RotaryAtAttributes&) {
  if (input == 1) return arg.contiguous();
  return arg.strides.back() == 1 || arg.shape().back() <= 1;
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const RotaryAtAttributes&) {
  Cost result = default_cost(inputs, outputs);
  result.flops *= 3.0;
  return result;
}

}  // namespace

const Op& rotary_at_op() {
  static const TypedOp<RotaryAtAttributes> op({
      .name = "rotary_at",
      .summary = "rotary embedding at positions that are an input",
      .infer = infer,
      .reference = reference,
      .in_place = {{.output = 0, .input = 0}},
      .accepts = accepts,
      .cpu = bind_rotary_at_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_rotary_at_cuda),
      .cost = cost,
  });
  return op;
}

Tensor rotary_at(const Tensor& x, const Tensor& positions, double base) {
  return apply1(rotary_at_op(), {x, positions}, RotaryAtAttributes{base});
}

}  // namespace ebb
