// Windows of T + 1 tokens as a batch of x (B, T) and y (B, T), which is x one token later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

inline std::vector<TensorType> window_types(std::int64_t batch, std::int64_t sequence,
                                            DType dtype) {
  return {{{batch, sequence}, dtype}, {{batch, sequence}, dtype}};
}

// `fill(item, window)` writes one window of T + 1 tokens.
template <class Token, class Fill>
Batch window_batch(std::span<const std::int64_t> items, std::int64_t sequence, Fill&& fill) {
  const auto length = static_cast<std::size_t>(sequence);
  std::vector<std::int32_t> window(length + 1);
  std::vector<Token> x(items.size() * length), y(items.size() * length);
  for (std::size_t row = 0; row < items.size(); ++row) {
    fill(items[row], std::span(window));
    std::copy_n(window.begin(), length, x.begin() + static_cast<std::ptrdiff_t>(row * length));
    std::copy_n(window.begin() + 1, length, y.begin() + static_cast<std::ptrdiff_t>(row * length));
  }
  const Shape shape{static_cast<std::int64_t>(items.size()), sequence};
  return {{Tensor::from(x, shape), Tensor::from(y, shape)}};
}

}  // namespace ebb::data
