// What the kernels of batch normalisation know of a channel, whichever way it lies in memory: how
// parts of one join, and what follows from the whole.
#pragma once

#include "ebb/storage.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.cuh"

namespace ebb {
namespace {

using namespace cuda;

template <class S, int width>
__device__ void load(const S* from, Compute<S> (&to)[width]) {
  if constexpr (width > 1)
    load_pack(from, to);
  else
    to[0] = widen(*from);
}
template <class S, int width>
__device__ void store(S* to, const Compute<S> (&from)[width]) {
  if constexpr (width > 1)
    store_pack(to, from);
  else
    *to = narrow<S>(from[0]);
}

// Count, mean and sum of squared deviations of some elements; two join as two samples of a
// population do.
struct Moments {
  double count = 0.0, mean = 0.0, squares = 0.0;

  struct Join {
    __device__ Moments operator()(const Moments& a, const Moments& b) const {
      if (a.count == 0.0) return b;
      if (b.count == 0.0) return a;
      const double all = a.count + b.count, gap = b.mean - a.mean;
      return {all, a.mean + gap * (b.count / all),
              a.squares + b.squares + gap * gap * (a.count * b.count / all)};
    }
  };
};

struct Sums {
  double g = 0.0, g_centred = 0.0;  // Σ g, Σ g · (x - mean)

  struct Join {
    __device__ Sums operator()(const Sums& a, const Sums& b) const {
      return {a.g + b.g, a.g_centred + b.g_centred};
    }
  };
};

// What is applied to each element x of a channel.
template <class T>
struct Coefficients {
  T mean, scale, shift, slope;

  __device__ T forward(T x) const { return (x - mean) * scale + shift; }
  __device__ T backward(T x, T g) const { return scale * (g - shift - (x - mean) * slope); }
};

template <class T>
__device__ T reciprocal_deviation(T var, double eps) {
  return static_cast<T>(1.0 / square_root(static_cast<double>(var) + eps));
}

// Forward: mean, variance and coefficients of a channel from its moments.
template <class S>
struct ForwardChannels {
  using T = Compute<S>;
  using Part = Moments;
  const S *weight, *bias;  // null where there is none
  double eps;
  T *means, *vars;

  ForwardChannels(const KernelArgs& args, const BatchNormAttributes& a)
      : weight(a.weight ? args.in<S>(1) : nullptr),
        bias(a.bias ? args.in<S>(a.weight ? 2 : 1) : nullptr),
        eps(a.eps),
        means(args.out<T>(1)),
        vars(args.out<T>(2)) {}

  __device__ Coefficients<T> finish(std::int64_t c, const Moments& all) const {
    const T mean = static_cast<T>(all.mean), var = static_cast<T>(all.squares / all.count);
    means[c] = mean;
    vars[c] = var;
    return {mean, reciprocal_deviation(var, eps) * (weight ? widen(weight[c]) : T(1)),
            bias ? widen(bias[c]) : T(0), T(0)};
  }
};

// Backward: with v = (x - mean) · rstd, the gradients of weight and bias are Σ g · v and Σ g, and
//   dx = weight · rstd · (g - mean(g) - v · mean(g · v)).
template <class S>
struct BackwardChannels {
  using T = Compute<S>;
  using Part = Sums;
  const S* weight;  // null where there is none
  double eps, count;
  const T *means, *vars;
  S *dweight, *dbias;

  BackwardChannels(const KernelArgs& args, const BatchNormGradAttributes& a, double per_channel)
      : weight(a.weight ? args.in<S>(4) : nullptr),
        eps(a.eps),
        count(per_channel),
        means(args.in<T>(2)),
        vars(args.in<T>(3)),
        dweight(args.out<S>(1)),
        dbias(args.out<S>(2)) {}

  __device__ Coefficients<T> finish(std::int64_t c, const Sums& all) const {
    const T rstd = reciprocal_deviation(vars[c], eps);
    const double wide = static_cast<double>(rstd);
    dweight[c] = narrow<S>(static_cast<T>(all.g_centred * wide));
    dbias[c] = narrow<S>(static_cast<T>(all.g));
    return {means[c], rstd * (weight ? widen(weight[c]) : T(1)), static_cast<T>(all.g / count),
            static_cast<T>(all.g_centred / count * wide * wide)};
  }
};

// Coefficients of every channel, then the partial results of `slices` slices of each.
template <class S, class Part>
struct Workspace {
  Bytes coefficients, all;
  Workspace(std::int64_t channels, std::int64_t slices)
      : coefficients(
            round_up(channels * Bytes{static_cast<std::int64_t>(sizeof(Coefficients<Compute<S>>))},
                     buffer_alignment)),
        all(coefficients + channels * slices * Bytes{static_cast<std::int64_t>(sizeof(Part))}) {}
};

}  // namespace
}  // namespace ebb
