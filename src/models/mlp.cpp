#include "ebb/models/mlp.h"

#include "models/check_config.h"

namespace ebb::models {

Mlp::Mlp(const MlpConfig& config) : config_(config) {
  check_sizes("the perceptron",
              {{"inputs", config.inputs}, {"hidden", config.hidden}, {"classes", config.classes}});
  const int layers = block_count("the perceptron", config.layers);
  for (int i = 0; i < layers; ++i)
    layers_.add(i == 0 ? config.inputs : config.hidden,
                i + 1 == layers ? config.classes : config.hidden);
}

Tensor Mlp::forward(const Tensor& x) {
  Tensor y = flatten(x, 1);
  for (int i = 0; i < layers_.size(); ++i) y = i == 0 ? layers_[i](y) : layers_[i](relu(y));
  return y;
}

}  // namespace ebb::models
