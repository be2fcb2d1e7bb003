// A linear layer whose weight has the pattern 2:4 and is stored without its zeros (ebb/pairs.h).
#pragma once

#include "ebb/nn/layers.h"
#include "ebb/pairs.h"

namespace ebb::nn {

// x (..., in) → (..., out); `in` is a multiple of 4. In bfloat16 the weight takes 9/16 of a dense
// one's bytes. In training, its gradient and the state of any optimizer have half the elements; the
// positions do not change. On the CPU alone.
class PairLinear : public Module<PairLinear> {
 public:
  // Keeps the first two of every four inputs until `assign` says otherwise.
  PairLinear(Place place, std::int64_t in, std::int64_t out, Bias bias = Bias::yes);
  Tensor forward(const Tensor& x);

  // Takes the two largest magnitudes of each group of four weights from a matrix (out, in) in the
  // layer's dtype. A matrix of the pattern is taken as it is.
  void assign(const Tensor& dense);
  Tensor dense() const { return spread_pairs(weight, positions); }

  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }

  Variable weight;     // (out, in / 2): the values that are kept
  Variable bias;       // (out), or empty
  Variable positions;  // (out, ⌈in / 8⌉), a buffer: not trained, and in checkpoints

 private:
  std::int64_t in_, out_;
};

}  // namespace ebb::nn
