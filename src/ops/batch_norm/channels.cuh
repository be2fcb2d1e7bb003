// Computations per channel that all batch-norm kernels share, for either layout: combining partial
// results, and coefficients from the total.
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

// Count, mean and sum of squared deviations of some elements; combined by the formula for merging
// two samples.
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

// Explicit: a compiler that may contract products and sums could do so with relu and not without,
// and fusion would change bits.
__device__ inline float fused_multiply_add(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ inline double fused_multiply_add(double a, double b, double c) { return ::fma(a, b, c); }

// y, rounded in the same places by every kernel, so that relu's mask is the same in all of them.
template <class T>
__device__ T normalised(T x, T mean, T scale, T shift) {
  return fused_multiply_add(x - mean, scale, shift);
}

// relu of y rounded to S, and relu's mask applied to a gradient.
template <class S>
__device__ Compute<S> relu_of(Compute<S> y) {
  return y < -lost_in<S> ? Compute<S>(0) : y;
}
template <class S>
__device__ Compute<S> passed(Compute<S> g, Compute<S> y) {
  return y <= lost_in<S> ? Compute<S>(0) : g;
}

// Coefficients applied to each element of a channel. Aligned for a single load.
template <class T>
struct alignas(16) Coefficients {
  T mean, scale, shift, slope;

  __device__ T forward(T x) const { return normalised(x, mean, scale, shift); }
  __device__ T backward(T x, T g) const {
    return scale * fused_multiply_add(mean - x, slope, g - shift);
  }
};

// The results of forward and backward; `shift` belongs to y. The added tensor is added to a rounded
// y, as if y had been stored.
template <class S, bool relu>
__device__ Compute<S> forward(const Coefficients<Compute<S>>& c, Compute<S> x) {
  return relu ? relu_of<S>(c.forward(x)) : c.forward(x);
}
template <class S, bool relu>
__device__ Compute<S> forward(const Coefficients<Compute<S>>& c, Compute<S> x, Compute<S> added) {
  const Compute<S> sum = widen(narrow<S>(c.forward(x))) + added;
  return relu ? relu_of<S>(sum) : sum;
}
template <class S, bool relu>
__device__ Compute<S> backward(const Coefficients<Compute<S>>& c, Compute<S> x, Compute<S> g,
                               Compute<S> shift) {
  return c.backward(x, relu ? passed<S>(g, normalised(x, c.mean, c.scale, shift)) : g);
}

template <class T>
__device__ T reciprocal_deviation(T var, double eps) {
  return static_cast<T>(1.0 / square_root(static_cast<double>(var) + eps));
}

// The factor of a channel's deviations in forward and backward.
template <class S>
__device__ Compute<S> scale_of(Compute<S> var, double eps, const S* weight, std::int64_t c) {
  return reciprocal_deviation(var, eps) * (weight ? widen(weight[c]) : Compute<S>(1));
}

// Parameters of y, for backward.
template <class S>
struct Forwards {
  using T = Compute<S>;
  const S *weight = nullptr, *bias = nullptr;  // null where there is none
  const T* wide_bias = nullptr;                // or not yet rounded
  const T *means = nullptr, *vars = nullptr;
  double eps = 0.0;

  Forwards() = default;
  Forwards(const KernelArgs& args, const BatchNormGradAttributes& a, bool wide)
      : weight(a.weight ? args.in<S>(4) : nullptr),
        bias(a.bias && !wide ? args.in<S>(a.bias_input()) : nullptr),
        wide_bias(a.bias && wide ? args.in<T>(a.bias_input()) : nullptr),
        means(args.in<T>(2)),
        vars(args.in<T>(3)),
        eps(a.eps) {}

  __device__ T scale(std::int64_t c) const { return scale_of(vars[c], eps, weight, c); }
  __device__ T shift(std::int64_t c) const {
    if (wide_bias) return widen(narrow<S>(wide_bias[c]));
    return bias ? widen(bias[c]) : T(0);
  }
};

// Whether the bias that backward is given is still to be rounded.
inline bool has_wide_bias(const KernelRequest& request, const BatchNormGradAttributes& a) {
  return a.bias && request.in(a.bias_input()).dtype() != request.out().dtype();
}

// Calls body with a flag that is known when kernels are compiled.
template <class Body>
void with_flag(bool flag, const Body& body) {
  if (flag)
    body(std::true_type{});
  else
    body(std::false_type{});
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
        bias(a.bias ? args.in<S>(a.bias_input()) : nullptr),
        eps(a.eps),
        means(args.out<T>(1)),
        vars(args.out<T>(2)) {}

  __device__ Coefficients<T> finish(std::int64_t c, const Moments& all) const {
    const T mean = static_cast<T>(all.mean), var = static_cast<T>(all.squares / all.count);
    means[c] = mean;
    vars[c] = var;
    return {mean, scale_of(var, eps, weight, c), bias ? widen(bias[c]) : T(0), T(0)};
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
    return {means[c], scale_of(vars[c], eps, weight, c), static_cast<T>(all.g / count),
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
