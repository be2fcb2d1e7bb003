// A multilayer perceptron for classification.
#pragma once

#include "ebb/nn/layers.h"

namespace ebb::models {

struct MlpConfig {
  std::int64_t inputs = 784, hidden = 200, classes = 10,
               layers = 2;  // layers: linear ones, at least 1
};

class Mlp : public nn::Module<Mlp> {
 public:
  explicit Mlp(const MlpConfig& config);
  Tensor forward(const Tensor& x);  // (N, ...) → (N, classes)
  const MlpConfig& config() const { return config_; }

 private:
  MlpConfig config_;
  nn::List<nn::Linear> layers_{at("layers")};
};

}  // namespace ebb::models
