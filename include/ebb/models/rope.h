// Rotary position embeddings beyond the plain form: frequencies changed for a longer context, heads
// that are only partly rotated, and positions as an input.
#pragma once

#include <cstdint>

#include "ebb/tensor.h"

namespace ebb::models {

// How frequencies are changed; the names of transformers' rope_type.
enum class RopeScaling : std::uint8_t {
  none,
  linear,   // all are divided by `factor`
  dynamic,  // changes nothing within the context, which no sequence exceeds here
  llama3,   // low ones are divided by `factor`, high ones stay, those between are mixed
  yarn,     // the same by numbers of turns within the original context
};

struct Rope {
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  std::int64_t original_context = 0;  // of llama3 and yarn: before it was made longer
  double low = 1.0, high = 4.0;       // llama3: turns within the original context
  double slow = 1.0, fast = 32.0;     // yarn: likewise
  bool whole_pairs = true;            // yarn: the range of mixing is rounded to whole pairs
  double magnitude = 1.0;             // yarn: cosines and sines are multiplied by it
  bool operator==(const Rope&) const = default;
};

// float64 (size / 2): the angle between two positions for each pair of `size` features.
Tensor rope_speeds(const Rope& rope, double base, std::int64_t size, Device device);

// cos and sin of every token's angles, (T, pairs) or, with positions of their own, (B, 1, T,
// pairs).
struct Turns {
  Tensor cosine, sine;

  explicit operator bool() const { return static_cast<bool>(cosine); }
};
// `positions` is int32 (B, T), or empty: the tokens have positions 0 to `length` - 1. `dtype` is
// that of the tensor to be rotated.
Turns make_turns(const Tensor& speeds, double magnitude, std::int64_t length,
                 const Tensor& positions, DType dtype);

// Rotates pairs (i, i + pairs) of the first 2 · pairs features of x (B, H, T, D).
Tensor turned(const Tensor& x, const Turns& turns);

}  // namespace ebb::models
