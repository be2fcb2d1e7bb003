// Masks of weights at one bit each. A mask of n weights is a tensor of ⌈n / 8⌉ bytes: weight i, in
// the order of the weights in memory, is live if bit i % 8 of byte i / 8 is set, and dead
// otherwise. Bits past the last weight are ignored.
#pragma once

#include <cstdint>
#include <string_view>

#include "ebb/tensor.h"

namespace ebb {

// N:M sparsity: of every `of` neighbours along the inputs of a matrix, `kept` weights stay.
struct Pattern {
  std::int64_t kept = 2, of = 4;
  bool operator==(const Pattern&) const = default;
};
Pattern pattern_named(std::string_view text);  // "2:4"; anything else is a ValueError

// The type of a mask for that many weights.
TensorType mask_type(std::int64_t weights);

// x where its weight is live, zero elsewhere, in any dtype. `weights` is the number of weights that
// the mask is for; 0 stands for the number of elements of x. If x has k elements for each weight
// (such as the two bytes that complete a bfloat16), they are neighbours.
Tensor masked(const Tensor& x, const Tensor& mask, std::int64_t weights = 0);

enum class MaskScore : std::uint8_t {
  magnitude,  // the weights with the smallest absolute values die
  value,      // those with the smallest scores die
};

// Where weights are chosen: among all of the tensor, or among runs of `of` along `axis`.
struct MaskRuns {
  std::int64_t of = 0;  // 0: all of the tensor
  std::int64_t axis = 0;
};

// A mask with fewer live weights: ⌊share · n⌋ of the n weights are dead afterwards, or ⌊share · of⌋
// of each run. Dead weights stay dead. Of equal scores the first dies. `share` is a float64 scalar;
// below 0 the mask stays as it is, at the cost of a comparison.
Tensor shrunk_mask(const Tensor& scores, const Tensor& mask, const Tensor& share, MaskScore score,
                   const MaskRuns& runs = {});

// RigL (Evci et al. 2020): the share of live weights that have the smallest absolute values die,
// and as many weights that are dead then live, those with the largest absolute gradients. The
// number of live weights stays. If a gradient is not finite, or `share` is below 0, the mask stays.
Tensor regrown_mask(const Tensor& weights, const Tensor& mask, const Tensor& share,
                    const Tensor& gradients);

}  // namespace ebb
