// logsumexp, var and argmax: one number for each contiguous row.
#include "ops/cuda/rows.cuh"
#include "ops/row_statistics/row_statistics.h"

namespace ebb {
namespace {

using namespace cuda;

struct Logsumexp {
  const void* in;
  void* out;

  // An infinite largest element is not subtracted, since inf - inf would be NaN; the result is then
  // that infinity.
  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    T most = -infinity<T>();
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width];
      x.get(slot, column, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) most = Larger{}(most, v[k]);
    });
    most = walk.largest(most);
    const T shift = isinf(most) ? T(0) : most;
    const double total = walk.sum_over(x, [shift](T v) { return exponential(v - shift); });
    if (walk.lane == 0)
      static_cast<S*>(out)[r] = narrow<S>(static_cast<T>(logarithm(total)) + shift);
  }
};

struct Var {
  const void* in;
  void* out;
  std::int64_t correction;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    const double n = static_cast<double>(walk.columns);
    const T mean = static_cast<T>(walk.sum_over(x, [](T v) { return v; }) / n);
    const double squares = walk.sum_over(x, [mean](T v) { return (v - mean) * (v - mean); });
    if (walk.lane == 0)
      static_cast<S*>(out)[r] =
          narrow<S>(static_cast<T>(squares / (n - static_cast<double>(correction))));
  }
};

template <class Make>
Kernel bind(const KernelRequest& request, const char* name, const Make& make) {
  return dispatch_floating(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.in(0).shape()), name, make](const KernelArgs& args) {
      launch_rows<S>(args, name, make(args), shape, aligned_for_packs(args.inputs[0]));
    }};
  });
}

// --- argmax

template <class T>
struct Best {
  T value;
  std::int64_t at;
};

// The first NaN, else the first of the largest.
struct Better {
  template <class T>
  __device__ Best<T> operator()(const Best<T>& a, const Best<T>& b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = (a_nan && b_nan) || a.value == b.value;
    const bool b_wins = tie ? b.at < a.at : !a_nan && (b_nan || b.value > a.value);
    return b_wins ? b : a;
  }
};

constexpr int argmax_threads = 256;

template <class S>
__global__ void argmax_kernel(const S* x, std::int64_t* out, std::int64_t columns) {
  const S* row = x + static_cast<std::int64_t>(blockIdx.x) * columns;
  using T = Compute<S>;
  Best<T> best{widen(row[0]), 0};
  for (std::int64_t i = threadIdx.x; i < columns; i += argmax_threads)
    best = Better{}(best, Best<T>{widen(row[i]), i});
  best = Group<argmax_threads>{static_cast<int>(threadIdx.x)}.join(best, Better{});
  if (threadIdx.x == 0) out[blockIdx.x] = best.at;
}

}  // namespace

Kernel bind_logsumexp_cuda(const KernelRequest& request, const NoAttributes&) {
  return bind(request, "logsumexp", [](const KernelArgs& args) {
    return Logsumexp{args.inputs[0], args.outputs[0]};
  });
}

Kernel bind_var_cuda(const KernelRequest& request, const VarAttributes& a) {
  return bind(request, "var", [correction = a.correction](const KernelArgs& args) {
    return Var{args.inputs[0], args.outputs[0], correction};
  });
}

Kernel bind_argmax_cuda(const KernelRequest& request, const NoAttributes&) {
  return dispatch_numeric(request, request.in(0).dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.in(0).shape())](const KernelArgs& args) {
      launch({args, "argmax", dim3(static_cast<unsigned>(shape.rows)), dim3(argmax_threads)},
             argmax_kernel<S>, args.in<S>(0), args.out<std::int64_t>(), shape.columns);
    }};
  });
}

}  // namespace ebb
