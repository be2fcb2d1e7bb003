// Models of images: residual networks and perceptrons.
#include "onnx/attention.h"
#include "onnx/family.h"
#include "onnx/layers.h"

namespace ebb::onnx {
namespace {

using models::ResNetConfig;
using Integers = std::vector<std::int64_t>;

// A convolution without bias, and batch norm by running statistics.
Value conv_norm(Builder& b, const std::string& name, const Value& x, std::int64_t stride) {
  const Builder::Module module(b, name);
  // Before opset 22, Conv does not take bfloat16.
  const DType dtype = x.dtype == bf16 ? f32 : x.dtype;
  Value y;
  {
    const Builder::Module conv(b, "conv");
    const std::int64_t kernel = b.size("weight", 2), pad = kernel / 2;
    y = b.node("Conv", {b.cast(x, dtype), b.weight("weight", dtype)},
               {{"kernel_shape", Integers{kernel, kernel}},
                {"pads", Integers{pad, pad, pad, pad}},
                {"strides", Integers{stride, stride}}});
  }
  const Builder::Module norm(b, "norm");
  const Value normal = b.node("BatchNormalization",
                              {b.in_float(y), b.weight("weight", f32), b.weight("bias", f32),
                               b.weight("running_mean", f32), b.weight("running_var", f32)},
                              {{"epsilon", 1e-5f}});
  return b.cast(normal, x.dtype);
}

Value block(Builder& b, const ResNetConfig& c, std::int64_t in, std::int64_t width,
            std::int64_t stride, const Value& x) {
  const bool basic = c.block == ResNetConfig::Block::basic;
  const Integers strides = basic ? Integers{stride, 1} : Integers{1, stride, 1};
  Value y = x;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (i > 0) y = b.node("Relu", {y});
    y = conv_norm(b, "layers." + std::to_string(i), y, strides[i]);
  }
  const bool same = stride == 1 && in == models::ResidualBlock::outputs(c.block, width);
  return b.node("Relu", {b.add(y, same ? x : conv_norm(b, "shortcut", x, stride))});
}

}  // namespace

void describe(Builder& b, const ResNetConfig& c) {
  const Value images = b.input("input", b.compute(), {batch_axis, c.channels, "height", "width"});
  Value x = b.node("Relu", {conv_norm(b, "stem", images, 1)});
  std::int64_t in = c.widths.front();
  int index = 0;
  for (std::size_t stage = 0; stage < c.stages.size(); ++stage)
    for (int i = 0; i < c.stages[stage]; ++i) {
      const Builder::Module module(b, "blocks." + std::to_string(index++));
      x = block(b, c, in, c.widths[stage], stage > 0 && i == 0 ? 2 : 1, x);
      in = models::ResidualBlock::outputs(c.block, c.widths[stage]);
    }
  const Value pooled = b.node("Flatten", {b.node("GlobalAveragePool", {b.in_float(x)})});
  b.output(linear(b, "classifier", b.cast(pooled, x.dtype), nn::Bias::yes), "logits",
           {batch_axis, c.classes});
}

void describe(Builder& b, const models::MlpConfig& c) {
  Value x = b.input("input", b.compute(), {batch_axis, c.inputs});
  for (std::int64_t i = 0; i < c.layers; ++i) {
    if (i > 0) x = b.node("Relu", {x});
    x = linear(b, "layers." + std::to_string(i), x, nn::Bias::yes);
  }
  b.output(x, "logits", {batch_axis, c.classes});
}

}  // namespace ebb::onnx
