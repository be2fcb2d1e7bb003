// Sequences with a label each as a batch of ids (B, T), labels (B) and mask (B, T).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/data/dataset.h"

namespace ebb::data {

struct Labelled {
  std::int32_t label;
  std::size_t length;  // tokens before the padding
};

inline std::vector<TensorType> labelled_types(std::int64_t batch, std::int64_t sequence) {
  return {{{batch, sequence}, i32}, {{batch}, i32}, {{batch, sequence}, b8}};
}

// `fill(item, ids)` writes the tokens of one item into T ids that are zero, the padding.
template <class Fill>
Batch labelled_batch(std::span<const std::int64_t> items, std::int64_t sequence, Fill&& fill) {
  const auto length = static_cast<std::size_t>(sequence);
  std::vector<std::int32_t> ids(items.size() * length), labels(items.size());
  std::vector<std::uint8_t> mask(ids.size());
  for (std::size_t row = 0; row < items.size(); ++row) {
    const Labelled made = fill(items[row], std::span(ids).subspan(row * length, length));
    labels[row] = made.label;
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * length), made.length,
                std::uint8_t{1});
  }
  const std::vector<TensorType> types =
      labelled_types(static_cast<std::int64_t>(items.size()), sequence);
  return {{Tensor::from(ids, types[0].shape), Tensor::from(labels, types[1].shape),
           Tensor::from_bytes(std::as_bytes(std::span(mask)), types[2])}};
}

}  // namespace ebb::data
