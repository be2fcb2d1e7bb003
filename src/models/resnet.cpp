#include "ebb/models/resnet.h"

#include <fmt/core.h>

#include "ebb/error.h"
#include "models/check_config.h"

namespace ebb::models {

ConvNorm::ConvNorm(nn::Place place, std::int64_t in, std::int64_t out, std::int64_t kernel,
                   std::int64_t stride, ImageLayout layout)
    : Module(std::move(place)),
      conv_(at("conv"), in, out, kernel,
            {.stride = stride, .padding = kernel / 2, .layout = layout}, nn::Bias::no),
      norm_(at("norm"), out, 1e-5, 0.1, layout) {}

ResidualBlock::ResidualBlock(nn::Place place, ResNetConfig::Block kind, std::int64_t in,
                             std::int64_t width, std::int64_t stride, ImageLayout layout)
    : Module(std::move(place)) {
  const std::int64_t out = outputs(kind, width);
  if (kind == ResNetConfig::Block::basic) {
    layers_.add(in, width, 3, stride, layout);
    layers_.add(width, width, 3, 1, layout);
  } else {
    layers_.add(in, width, 1, 1, layout);
    layers_.add(width, width, 3, stride, layout);
    layers_.add(width, out, 1, 1, layout);
  }
  if (stride != 1 || in != out)
    shortcut_ = std::make_unique<ConvNorm>(at("shortcut"), in, out, 1, stride, layout);
}

Tensor ResidualBlock::forward(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < layers_.size(); ++i) y = i == 0 ? layers_[i](y) : layers_[i](relu(y));
  return relu(y + (shortcut_ ? (*shortcut_)(x) : x));
}

namespace {

const ResNetConfig& checked(const ResNetConfig& c) {
  if (c.stages.empty() || c.stages.size() != c.widths.size())
    throw ValueError(
        fmt::format("ResNet: every stage needs a width, but there are {} stages and {} widths",
                    c.stages.size(), c.widths.size()));
  check_sizes("ResNet", {{"channels", c.channels}, {"classes", c.classes}});
  for (std::int64_t width : c.widths) check_sizes("ResNet", {{"a stage's width", width}});
  for (int blocks : c.stages) block_count("ResNet", blocks);
  return c;
}

}  // namespace

ResNet::ResNet(const ResNetConfig& config)
    : config_(checked(config)),
      stem_(at("stem"), config.channels, config.widths.front(), 3, 1, config.layout) {
  std::int64_t in = config.widths.front();
  for (std::size_t stage = 0; stage < config.stages.size(); ++stage)
    for (int i = 0; i < config.stages[stage]; ++i) {
      blocks_.add(config.block, in, config.widths[stage], stage > 0 && i == 0 ? 2 : 1,
                  config.layout);
      in = ResidualBlock::outputs(config.block, config.widths[stage]);
    }
  classifier_ = std::make_unique<nn::Linear>(at("classifier"), in, config.classes);
}

Tensor ResNet::forward(const Tensor& x) {
  const bool last = config_.layout == ImageLayout::channels_last;
  Tensor y = relu(stem_(last ? permute(x, {0, 2, 3, 1}) : x));
  for (ResidualBlock& block : blocks_) y = block(y);
  return (*classifier_)(global_avg_pool2d(y, config_.layout));
}

}  // namespace ebb::models
