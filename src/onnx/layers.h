// Layers of ebb's models as ONNX nodes. A layer's name is its module's, within the builder's
// current module.
#pragma once

#include <string_view>

#include "ebb/nn/layers.h"
#include "onnx/builder.h"

namespace ebb::onnx {

enum class WeightOrder : bool { out_in, in_out };

// x (..., in) → (..., out), with the bias if there is one.
Value linear(Builder& b, std::string_view name, const Value& x, nn::Bias bias,
             WeightOrder order = WeightOrder::out_in);
// x (..., in) times the transpose of a whole weight (out, in) of any module: a head.
Value project(Builder& b, const Value& x, const Value& weight);
Value embedding(Builder& b, std::string_view name, const Value& ids);
Value layer_norm(Builder& b, std::string_view name, const Value& x, double eps);
Value rms_norm(Builder& b, std::string_view name, const Value& x, double eps);
Value activate(Builder& b, nn::Activation activation, const Value& x);

}  // namespace ebb::onnx
