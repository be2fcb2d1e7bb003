// Every activation in operators of opset 18. Half types are computed in float32 and rounded once,
// except where the operator is exact.
#include <numbers>

#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using nn::Activation;

Value clip(Builder& b, const Value& x, double low, double high) {
  return b.node("Clip", {x, b.scalar(low, x.dtype), b.scalar(high, x.dtype)});
}

Value erf_gelu(Builder& b, const Value& x) {
  const Value part = b.node("Erf", {b.multiply(x, std::numbers::sqrt2 / 2.0)});
  return b.multiply(b.multiply(x, 0.5), b.add(part, 1.0));
}

Value tanh_gelu(Builder& b, const Value& x) {
  constexpr double root = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // √(2 / π)
  const Value cube = b.multiply(b.multiply(x, x), x);
  const Value part = b.node("Tanh", {b.multiply(b.add(x, b.multiply(cube, 0.044715)), root)});
  return b.multiply(b.multiply(x, 0.5), b.add(part, 1.0));
}

Value in_float(Builder& b, Activation activation, const Value& x) {
  switch (activation) {
    case Activation::relu:
      return b.node("Relu", {x});
    case Activation::gelu:
      return erf_gelu(b, x);
    case Activation::gelu_tanh:
      return tanh_gelu(b, x);
    case Activation::silu:
      return b.multiply(x, b.node("Sigmoid", {x}));
    case Activation::tanh:
      return b.node("Tanh", {x});
    case Activation::sigmoid:
      return b.node("Sigmoid", {x});
    case Activation::linear:
      return x;
    case Activation::leaky_relu:
      return b.node("LeakyRelu", {x}, {{"alpha", 0.01f}});
    case Activation::relu6:
      return clip(b, x, 0.0, 6.0);
    case Activation::relu2: {
      const Value y = b.node("Relu", {x});
      return b.multiply(y, y);
    }
    case Activation::gelu_10:
      return clip(b, erf_gelu(b, x), -10.0, 10.0);
    case Activation::quick_gelu:
      return b.multiply(x, b.node("Sigmoid", {b.multiply(x, 1.702)}));
    case Activation::hardswish:
      return b.multiply(b.multiply(x, clip(b, b.add(x, 3.0), 0.0, 6.0)), 1.0 / 6.0);
    case Activation::mish:
      return b.multiply(x, b.node("Tanh", {b.node("Softplus", {x})}));
    case Activation::laplace: {
      const Value part = b.multiply(b.add(x, -0.707107), 1.0 / (0.282095 * std::numbers::sqrt2));
      return b.multiply(b.add(b.node("Erf", {part}), 1.0), 0.5);
    }
    case Activation::sqrt_softplus:
      break;
  }
  return b.node("Sqrt", {b.node("Softplus", {x})});
}

}  // namespace

Value activate(Builder& b, Activation activation, const Value& x) {
  if (activation == Activation::linear || activation == Activation::relu)
    return in_float(b, activation, x);
  return b.cast(in_float(b, activation, b.in_float(x)), x.dtype);
}

}  // namespace ebb::onnx
