// Meta-Weight-Net (Shu et al., 2019): the weight of a training item as a function of its loss.
#pragma once

#include "ebb/nn/layers.h"

namespace ebb::models {

class MetaWeightNet : public nn::Module<MetaWeightNet> {
 public:
  explicit MetaWeightNet(std::int64_t hidden = 100)
      : in_(at("in"), 1, hidden), out_(at("out"), hidden, 1) {}
  // losses (N) → weights (N) in (0, 1)
  Tensor forward(const Tensor& losses) {
    return reshape(sigmoid(out_(relu(in_(reshape(losses, {-1, 1}))))), losses.shape());
  }

 private:
  nn::Linear in_, out_;
};

}  // namespace ebb::models
