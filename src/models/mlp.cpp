#include "ebb/models/mlp.h"

namespace ebb::models {

Mlp::Mlp(const MlpConfig& config) {
  for (std::int64_t i = 0; i < config.layers; ++i)
    layers_.add(i == 0 ? config.inputs : config.hidden,
                i + 1 == config.layers ? config.classes : config.hidden);
}

Tensor Mlp::forward(const Tensor& x) {
  Tensor y = flatten(x, 1);
  for (int i = 0; i < layers_.size(); ++i) y = i == 0 ? layers_[i](y) : layers_[i](relu(y));
  return y;
}

}  // namespace ebb::models
