#include "onnx/layers.h"

namespace ebb::onnx {

Value project(Builder& b, const Value& x, const Value& weight) {
  // Engines fold the transpose of a constant when they load the model.
  return b.node("MatMul", {x, b.transpose(weight, {1, 0})});
}

Value linear(Builder& b, std::string_view name, const Value& x, nn::Bias bias, WeightOrder order) {
  const Builder::Module module(b, name);
  const bool swapped = order == WeightOrder::in_out;
  Value y;
  if (b.is_quantised("weight"))
    y = project(b, x, b.quantised_weight("weight", swapped));
  else if (swapped)
    y = b.node("MatMul", {x, b.weight("weight")});
  else
    y = project(b, x, b.weight("weight"));
  return bias == nn::Bias::yes ? b.add(y, b.weight("bias")) : y;
}

Value embedding(Builder& b, std::string_view name, const Value& ids) {
  const Builder::Module module(b, name);
  return b.node("Gather", {b.weight("weight"), ids});
}

Value layer_norm(Builder& b, std::string_view name, const Value& x, double eps) {
  const Builder::Module module(b, name);
  const Value y =
      b.node("LayerNormalization", {b.in_float(x), b.weight("weight", f32), b.weight("bias", f32)},
             {{"axis", std::int64_t{-1}}, {"epsilon", static_cast<float>(eps)}});
  return b.cast(y, x.dtype);
}

Value rms_norm(Builder& b, std::string_view name, const Value& x, double eps) {
  const Builder::Module module(b, name);
  const Value wide = b.in_float(x);
  const Value mean = b.node("ReduceMean", {b.multiply(wide, wide), b.integers({-1})});
  const Value y = b.node("Div", {wide, b.node("Sqrt", {b.add(mean, eps)})});
  return b.cast(b.multiply(y, b.weight("weight", f32)), x.dtype);
}

}  // namespace ebb::onnx
