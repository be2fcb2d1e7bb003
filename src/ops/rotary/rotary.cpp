#include "ops/rotary/rotary.h"

#include <fmt/core.h>

#include <cmath>

#include "ebb/ops.h"
#include "ops/cuda_kernels.h"

namespace ebb {
namespace {

std::vector<TensorType> infer(const Call& call, const RotaryAttributes& a) {
  call.require_floating(0);
  const Shape& x = call.shape(0);
  if (x.rank() < 2)
    call.fail_shape(
        fmt::format("needs axes for positions and features, but the rank is {}", x.rank()));
  if (x.back() % 2 != 0)
    call.fail_shape(fmt::format("the last axis must have an even size, but has {}", x.back()));
  if (!(a.base > 0.0 && std::isfinite(a.base)))
    call.fail_value(fmt::format("the base must be positive and finite, but is {}", a.base));
  return {call.inputs[0]};
}

// A rotation's transpose is its inverse.
std::vector<Tensor> gradient(const GradientCall& call, const RotaryAttributes& a) {
  RotaryAttributes back = a;
  back.inverse = !a.inverse;
  return {apply1(rotary_op(), {call.grad()}, back)};
}

std::vector<Tensor> reference(std::span<const Tensor> inputs, const RotaryAttributes& a) {
  const Tensor& x = inputs[0];
  const DType dtype = x.dtype() == f64 ? f64 : f32;
  const std::int64_t positions = x.shape()[x.rank() - 2], pairs = x.shape().back() / 2;
  // Angles grow with the position, so they are computed in float64: in float32, large angles would
  // have few fractional bits.
  const Tensor speed =
      exp(arange(pairs, f64, x.device()) *
          (-std::log(a.base) / static_cast<double>(std::max<std::int64_t>(pairs, 1))));
  const Tensor angle =
      unsqueeze(arange(positions, f64, x.device()) + static_cast<double>(a.first_position),
                -1) *
      speed;  // (T, D/2)
  const Tensor c = cast(cos(angle), dtype), s = cast(a.inverse ? -sin(angle) : sin(angle), dtype);
  const std::vector<Tensor> halves = chunk(cast(x, dtype), -1, 2);
  return {
      cast(concat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1), x.dtype())};
}

bool accepts(const Arg& arg, int, const RotaryAttributes&) {
  return arg.strides.back() == 1 || arg.shape().back() <= 1;
}

Cost cost(std::span<const TensorType> inputs, std::span<const TensorType> outputs,
          const RotaryAttributes&) {
  Cost result = default_cost(inputs, outputs);
  result.flops *= 3.0;
  return result;
}

}  // namespace

const Op& rotary_op() {
  static const TypedOp<RotaryAttributes> op({
      .name = "rotary",
      .summary = "turns pairs (i, i + D/2) by angles that grow with the position",
      .infer = infer,
      .gradient = gradient,
      .reference = reference,
      .in_place = {{.output = 0, .input = 0}},
      .accepts = accepts,
      .cpu = bind_rotary_cpu,
      .cuda = EBB_CUDA_KERNEL(bind_rotary_cuda),
      .cost = cost,
  });
  return op;
}

Tensor rotary(const Tensor& x, double base, std::int64_t first_position) {
  return apply1(rotary_op(), {x}, RotaryAttributes{base, first_position, false});
}

}  // namespace ebb
