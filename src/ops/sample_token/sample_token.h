// Drawing a token from logits. With Gumbel noise g(i), the largest of x(i) / temperature + g(i) is
// a draw from the softmax of x / temperature (Gumbel, 1954): each token needs only its own number,
// whatever else is kept. top_k and top_p keep the logits that reach a threshold, found by bisection
// over the ordered bits of float32 with counts and probabilities in whole numbers: the order of the
// additions changes nothing.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ebb/op.h"
#include "ebb/random.h"

namespace ebb {

struct SampleTokenAttributes {
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  bool operator==(const SampleTokenAttributes&) const = default;
  void visit(auto&& field) {
    field("temperature", temperature);
    field("top_k", top_k);
    field("top_p", top_p);
  }
};

// Operands in order.
struct SampleToken {
  enum Input : int { logits, keys, positions };
};

// (logits, keys, positions) → ids
const Op& sample_token_op();
Kernel bind_sample_token_cpu(const KernelRequest& request, const SampleTokenAttributes& attributes);
Kernel bind_sample_token_cuda(const KernelRequest& request,
                              const SampleTokenAttributes& attributes);

namespace sampling {

// Orders finite floats as whole numbers: a < b exactly if ordered(a) < ordered(b). Both zeros are
// one.
constexpr std::uint32_t ordered(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x == 0.0f ? 0.0f : x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A probability relative to the most likely token's, in units of 2^-40.
inline constexpr double mass_unit = 0x1p40;

// The random numbers of the token of one sequence at one position.
constexpr Philox numbers(std::int64_t key, std::int32_t position) {
  return {RandomState{static_cast<std::uint64_t>(key), 0},
          RandomKey{static_cast<std::uint64_t>(position)}};
}

// In (0, 1), never an end of it.
constexpr float open_uniform(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// The least key for which `reaches(key)` still holds, where it holds for all keys up to some one:
// the largest key whose elements at or above it have enough of what is counted.
template <class Reaches>
constexpr std::uint32_t threshold(const Reaches& reaches) {
  std::uint32_t found = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t tried = found | (1u << bit);
    if (reaches(tried)) found = tried;
  }
  return found;
}

}  // namespace sampling
}  // namespace ebb
