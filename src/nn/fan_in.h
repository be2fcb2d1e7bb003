#pragma once

#include <cmath>

#include "ebb/nn/module.h"

namespace ebb::nn {

// PyTorch's default for linear and convolution layers: uniform within 1 / √fan-in.
inline Initial fan_in_uniform(std::int64_t fan_in) {
  return Initial::uniform(fan_in > 0 ? 1.0 / std::sqrt(static_cast<double>(fan_in)) : 0.0);
}

}  // namespace ebb::nn
