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

ResidualBlock::ResidualBlock(nn::Place place, const Channels& c, std::int64_t stride,
                             ImageLayout layout)
    : Module(std::move(place)) {
  if (c.inner.size() == 1) {  // basic
    layers_.add(c.in, c.inner[0], 3, stride, layout);
    layers_.add(c.inner[0], c.out, 3, 1, layout);
  } else {
    layers_.add(c.in, c.inner[0], 1, 1, layout);
    layers_.add(c.inner[0], c.inner[1], 3, stride, layout);
    layers_.add(c.inner[1], c.out, 1, 1, layout);
  }
  if (c.shortcut)
    shortcut_ = std::make_unique<ConvNorm>(at("shortcut"), c.in, c.out, 1, stride, layout);
}

Tensor ResidualBlock::forward(const Tensor& x) {
  Tensor y = x;
  for (int i = 0; i < layers_.size(); ++i) y = i == 0 ? layers_[i](y) : layers_[i](relu(y));
  return relu(y + (shortcut_ ? (*shortcut_)(x) : x));
}

namespace {

std::size_t inner_layers(const ResNetConfig& c) {
  return c.block == ResNetConfig::Block::basic ? 1 : 2;
}

const ResNetConfig& checked(const ResNetConfig& c) {
  if (c.stages.empty() || c.stages.size() != c.widths.size())
    throw ValueError(
        fmt::format("ResNet: every stage needs a width, but there are {} stages and {} widths",
                    c.stages.size(), c.widths.size()));
  check_sizes("ResNet", {{"channels", c.channels}, {"classes", c.classes}});
  for (std::int64_t width : c.widths) check_sizes("ResNet", {{"a stage's width", width}});
  for (int blocks : c.stages) block_count("ResNet", blocks);
  const ResNetChannels& p = c.pruned;
  std::size_t blocks = 0;
  for (const int n : c.stages) blocks += static_cast<std::size_t>(n);
  if ((!p.outputs.empty() && p.outputs.size() != c.stages.size()) ||
      (!p.inner.empty() && p.inner.size() != blocks))
    throw ValueError(fmt::format(
        "ResNet: pruned channels must be given for all {} stages and all {} blocks, but "
        "are for {} and {}",
        c.stages.size(), blocks, p.outputs.size(), p.inner.size()));
  for (const std::int64_t size : p.outputs) check_sizes("ResNet", {{"a stage's channels", size}});
  for (const auto& inner : p.inner) {
    if (inner.size() != inner_layers(c))
      throw ValueError(
          fmt::format("ResNet: a block needs {} inner numbers of channels, but {} came",
                      inner_layers(c), inner.size()));
    for (const std::int64_t size : inner) check_sizes("ResNet", {{"a block's channels", size}});
  }
  return c;
}

std::int64_t stem_channels(const ResNetConfig& c) {
  return c.pruned.stem ? c.pruned.stem : c.widths.front();
}

}  // namespace

ResNet::ResNet(const ResNetConfig& config)
    : config_(checked(config)),
      stem_(at("stem"), config.channels, stem_channels(config), 3, 1, config.layout) {
  std::int64_t in = stem_channels(config), in_width = config.widths.front();
  std::size_t block = 0;
  for (std::size_t stage = 0; stage < config.stages.size(); ++stage) {
    const std::int64_t width = config.widths[stage],
                       out_width = ResidualBlock::outputs(config.block, width),
                       out =
                           config.pruned.outputs.empty() ? out_width : config.pruned.outputs[stage];
    for (int i = 0; i < config.stages[stage]; ++i, ++block) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      // The unpruned widths decide whether there is a shortcut, so that pruning never adds one.
      blocks_.add(ResidualBlock::Channels{.in = in,
                                          .inner = config.pruned.inner.empty()
                                                       ? std::vector<std::int64_t>(
                                                             inner_layers(config), width)
                                                       : config.pruned.inner[block],
                                          .out = out,
                                          .shortcut = stride != 1 || in_width != out_width},
                  stride, config.layout);
      in = out, in_width = out_width;
    }
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
