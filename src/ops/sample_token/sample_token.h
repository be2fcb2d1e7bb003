// Draws a token from logits. With Gumbel noise g(i), the largest of x(i) / temperature + g(i) is a
// draw from the softmax of x / temperature (Gumbel, 1954). So each token needs only its own random
// number, whichever other tokens are kept. top_k and top_p keep the logits above a threshold, which
// is found by bisection over the ordered bits of float32. Counts and probabilities are summed as
// integers, so the order of additions does not matter.
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

// Maps finite floats to integers in the same order: a < b exactly if ordered(a) < ordered(b). Both
// zeros have the same number.
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

// Uniform in (0, 1), both ends excluded.
constexpr float open_uniform(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// The largest key for which `reaches(key)` holds. `reaches` must hold for all keys up to some key
// and for none above it.
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
