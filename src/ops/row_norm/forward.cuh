// layer_norm and rms_norm of one row, for all kernels that normalise rows.
#pragma once

#include "ops/cuda/rows.cuh"

namespace ebb::cuda {

template <class S>
struct RowNormForward {
  using T = Compute<S>;
  const S *in, *weight, *bias;  // the last two may be null
  S* out;
  T *means, *rstds;  // each may be null: then it is not written
  double eps;
  bool centred;

  template <class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    const auto x = walk.open(in + r * walk.columns);
    S* y = out + r * walk.columns;
    const double n = static_cast<double>(walk.columns);
    const T mean = centred ? static_cast<T>(walk.sum_over(x, [](T v) { return v; }) / n) : T(0);
    const double square = walk.sum_over(x, [mean](T v) { return (v - mean) * (v - mean); }) / n;
    const T rstd = static_cast<T>(1.0 / square_root(square + eps));
    if (walk.lane == 0) {
      if (means) means[r] = mean;
      if (rstds) rstds[r] = rstd;
    }
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width], w[Walk::width], b[Walk::width];
      x.get(slot, column, v);
      if (weight) walk.load(weight + column, w);
      if (bias) walk.load(bias + column, b);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) {
        v[k] = (v[k] - mean) * rstd;
        if (weight) v[k] *= w[k];
        if (bias) v[k] += b[k];
      }
      walk.store(y + column, v);
    });
  }
};

}  // namespace ebb::cuda
