#include "ebb/models/resnet.h"

#include <fmt/format.h>

#include "ebb/error.h"

namespace ebb::models {

ConvNorm::ConvNorm(nn::Place place, std::int64_t in, std::int64_t out, std::int64_t kernel,
                   std::int64_t stride)
    : Module(std::move(place)),
      conv_(at("conv"), in, out, kernel, {.stride = stride, .padding = kernel / 2}, nn::Bias::no),
      norm_(at("norm"), out) {}

ResidualBlock::ResidualBlock(nn::Place place, ResNetConfig::Block kind, std::int64_t in,
                             std::int64_t width, std::int64_t stride)
    : Module(std::move(place)) {
  const std::int64_t out = outputs(kind, width);
  if (kind == ResNetConfig::Block::basic) {
    layers_.add(in, width, 3, stride);
    layers_.add(width, width, 3, 1);
  } else {
    layers_.add(in, width, 1, 1);
    layers_.add(width, width, 3, stride);
    layers_.add(width, out, 1, 1);
  }
  if (stride != 1 || in != out)
    shortcut_ = std::make_unique<ConvNorm>(at("shortcut"), in, out, 1, stride);
}

Tensor ResidualBlock::forward(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < layers_.size(); ++i) y = i == 0 ? layers_[i](y) : layers_[i](relu(y));
  return relu(y + (shortcut_ ? (*shortcut_)(x) : x));
}

ResNet::ResNet(const ResNetConfig& config)
    : stem_(at("stem"), config.channels, config.widths.empty() ? 0 : config.widths.front(), 3, 1) {
  if (config.stages.empty() || config.stages.size() != config.widths.size())
    throw ValueError(
        fmt::format("ResNet: every stage needs a width, but there are {} stages and {} widths",
                    config.stages.size(), config.widths.size()));
  std::int64_t in = config.widths.front();
  for (std::size_t stage = 0; stage < config.stages.size(); ++stage)
    for (int i = 0; i < config.stages[stage]; ++i) {
      blocks_.add(config.block, in, config.widths[stage], stage > 0 && i == 0 ? 2 : 1);
      in = ResidualBlock::outputs(config.block, config.widths[stage]);
    }
  classifier_ = std::make_unique<nn::Linear>(at("classifier"), in, config.classes);
}

Tensor ResNet::forward(const Tensor& x) {
  Tensor y = relu(stem_(x));
  for (ResidualBlock& block : blocks_) y = block(y);
  return (*classifier_)(global_avg_pool2d(y));
}

}  // namespace ebb::models
