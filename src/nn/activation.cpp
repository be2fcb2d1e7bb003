#include <cmath>
#include <numbers>

#include "ebb/nn/layers.h"

namespace ebb::nn {
namespace {

struct ActivationName {
  std::string_view name;
  Activation activation;
};

// The names in transformers' table of activations. Two of them, prelu and xielu, have parameters
// and are not here. The first name of an activation is the one it is written with.
constexpr ActivationName activation_names[] = {
    {"relu", Activation::relu},
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"tanh", Activation::tanh},
    {"sigmoid", Activation::sigmoid},
    {"linear", Activation::linear},
    {"leaky_relu", Activation::leaky_relu},
    {"relu6", Activation::relu6},
    {"relu2", Activation::relu2},
    {"gelu_10", Activation::gelu_10},
    {"quick_gelu", Activation::quick_gelu},
    {"hardswish", Activation::hardswish},
    {"mish", Activation::mish},
    {"laplace", Activation::laplace},
    {"sqrtsoftplus", Activation::sqrt_softplus},
};

}  // namespace

std::optional<Activation> activation_named(std::string_view name) {
  for (const ActivationName& row : activation_names)
    if (row.name == name) return row.activation;
  return std::nullopt;
}

std::string_view name(Activation activation) {
  for (const ActivationName& row : activation_names)
    if (row.activation == activation) return row.name;
  return {};
}

Tensor activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::relu:
      return relu(x);
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::silu:
      return silu(x);
    case Activation::tanh:
      return tanh(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::linear:
      return x;
    case Activation::leaky_relu:
      return where(greater(x, zeros({}, x.dtype(), x.device())), x, x * 0.01);
    case Activation::relu6:
      return clamp(x, 0.0, 6.0);
    case Activation::relu2:
      return square(relu(x));
    case Activation::gelu_10:
      return clamp(gelu(x), -10.0, 10.0);
    case Activation::quick_gelu:
      return x * sigmoid(x * 1.702);
    case Activation::hardswish:
      return x * clamp(x + 3.0, 0.0, 6.0) / 6.0;
    case Activation::mish:
      return x * tanh(softplus(x));
    case Activation::laplace:
      return (erf((x - 0.707107) / (0.282095 * std::numbers::sqrt2)) + 1.0) * 0.5;
    case Activation::sqrt_softplus:
      break;
  }
  return sqrt(softplus(x));
}

}  // namespace ebb::nn
