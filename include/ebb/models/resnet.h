// Residual networks in the form used on CIFAR: a 3×3 stem and no pooling before the stages.
#pragma once

#include "ebb/nn/layers.h"

namespace ebb::models {

// Numbers of channels that remain after pruning. Empty lists and 0 stand for the configured widths.
struct ResNetChannels {
  std::int64_t stem = 0;
  std::vector<std::int64_t> outputs;             // of the sums of each stage
  std::vector<std::vector<std::int64_t>> inner;  // between the convolutions of each block
  bool operator==(const ResNetChannels&) const = default;
};

struct ResNetConfig {
  enum class Block : bool { basic, bottleneck };
  Block block = Block::basic;
  std::vector<int> stages;           // blocks in each
  std::vector<std::int64_t> widths;  // of each stage
  std::int64_t channels = 3, classes = 10;
  // The layout of images inside the model; its inputs and weights are the same either way.
  ImageLayout layout = ImageLayout::channels_first;
  ResNetChannels pruned = {};

  static ResNetConfig resnet18(std::int64_t classes = 10) {
    return {Block::basic, {2, 2, 2, 2}, {64, 128, 256, 512}, 3, classes};
  }
  static ResNetConfig resnet32(std::int64_t classes = 10) {
    return {Block::basic, {5, 5, 5}, {16, 32, 64}, 3, classes};
  }
  static ResNetConfig resnet50(std::int64_t classes = 10) {
    return {Block::bottleneck, {3, 4, 6, 3}, {64, 128, 256, 512}, 3, classes};
  }
};

// A convolution without bias, and batch norm.
class ConvNorm : public nn::Module<ConvNorm> {
 public:
  ConvNorm(nn::Place place, std::int64_t in, std::int64_t out, std::int64_t kernel,
           std::int64_t stride, ImageLayout layout);
  Tensor forward(const Tensor& x) { return norm_(conv_(x)); }

 private:
  nn::Conv2d conv_;
  nn::BatchNorm2d norm_;
};

class ResidualBlock : public nn::Module<ResidualBlock> {
 public:
  struct Channels {
    std::int64_t in = 0;
    std::vector<std::int64_t> inner;  // one number for a basic block, two for a bottleneck
    std::int64_t out = 0;
    bool shortcut = false;  // whether the input goes through a convolution before it is added
  };
  ResidualBlock(nn::Place place, const Channels& channels, std::int64_t stride, ImageLayout layout);
  Tensor forward(const Tensor& x);
  static std::int64_t outputs(ResNetConfig::Block kind, std::int64_t width) {
    return kind == ResNetConfig::Block::basic ? width : 4 * width;
  }

 private:
  nn::List<ConvNorm> layers_{at("layers")};
  std::unique_ptr<ConvNorm> shortcut_;  // null where the input can be added as it is
};

class ResNet : public nn::Module<ResNet> {
 public:
  explicit ResNet(const ResNetConfig& config);
  Tensor forward(const Tensor& x);  // (N, channels, H, W) → (N, classes)
  const ResNetConfig& config() const { return config_; }

 private:
  ResNetConfig config_;
  ConvNorm stem_;
  nn::List<ResidualBlock> blocks_{at("blocks")};
  std::unique_ptr<nn::Linear> classifier_;
};

}  // namespace ebb::models
