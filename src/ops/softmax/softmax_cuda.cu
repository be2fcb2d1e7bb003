// Softmax and its logarithm over contiguous rows, as on the CPU: the largest element is subtracted
// first. Every kernel may write over its input, since each thread reads an element before it
// overwrites it.
#include "ops/cuda/rows.cuh"
#include "ops/softmax/softmax.h"

namespace ebb {
namespace {

using namespace cuda;

// Σ exp(x - most) of a row, and `most`.
template <class T>
struct Exponentials {
  T most;
  double total;

  template <class Walk>
  __device__ Exponentials(const Walk& walk, const typename Walk::Row& row) {
    most = -infinity<T>();
    walk.slots([&](int slot, std::int64_t column) {
      T x[Walk::width];
      row.get(slot, column, x);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) most = Larger{}(most, x[k]);
    });
    most = walk.largest(most);
    const T shift = most;
    total = walk.sum_over(row, [shift](T x) { return exponential(x - shift); });
  }
};

struct Softmax {
  const void* in;
  void* out;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    S* y = static_cast<S*>(out) + r * walk.columns;
    const Exponentials<T> e(walk, x);
    const T factor = static_cast<T>(1.0 / e.total);
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width];
      x.get(slot, column, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) v[k] = exponential(v[k] - e.most) * factor;
      walk.store(y + column, v);
    });
  }
};

struct LogSoftmax {
  const void* in;
  void* out;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto x = walk.open(static_cast<const S*>(in) + r * walk.columns);
    S* y = static_cast<S*>(out) + r * walk.columns;
    const Exponentials<T> e(walk, x);
    const T log_sum = static_cast<T>(logarithm(e.total));
    walk.slots([&](int slot, std::int64_t column) {
      T v[Walk::width];
      x.get(slot, column, v);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) v[k] = (v[k] - e.most) - log_sum;
      walk.store(y + column, v);
    });
  }
};

// dx = y · (g - Σ y g)
struct SoftmaxGrad {
  const void *y, *g;
  void* out;

  template <class S, class Walk>
  __device__ void row(std::int64_t r, const Walk& walk) const {
    using T = Compute<S>;
    const auto p = walk.open(static_cast<const S*>(y) + r * walk.columns);
    const auto q = walk.open(static_cast<const S*>(g) + r * walk.columns);
    S* dx = static_cast<S*>(out) + r * walk.columns;
    double dot = 0.0;
    walk.slots([&](int slot, std::int64_t column) {
      T a[Walk::width], b[Walk::width], part = T(0);
      p.get(slot, column, a);
      q.get(slot, column, b);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) part += a[k] * b[k];
      dot += static_cast<double>(part);
    });
    const T mean = static_cast<T>(walk.sum(dot));
    walk.slots([&](int slot, std::int64_t column) {
      T a[Walk::width], b[Walk::width];
      p.get(slot, column, a);
      q.get(slot, column, b);
#pragma unroll
      for (int k = 0; k < Walk::width; ++k) a[k] *= b[k] - mean;
      walk.store(dx + column, a);
    });
  }
};

// A kernel that runs make(args) over the rows of the output.
template <class Make>
Kernel bind(const KernelRequest& request, const char* name, const Make& make) {
  return dispatch_floating(request, request.out().dtype(), [&](auto tag) {
    using S = typename decltype(tag)::type;
    return Kernel{[shape = RowShape(request.out().shape()), name, make](const KernelArgs& args) {
      bool packs = aligned_for_packs(args.outputs[0]);
      for (const std::byte* input : args.inputs) packs = packs && aligned_for_packs(input);
      launch_rows<S>(args, name, make(args), shape, packs);
    }};
  });
}

}  // namespace

Kernel bind_softmax_cuda(const KernelRequest& request, const NoAttributes&) {
  return bind(request, "softmax", [](const KernelArgs& args) {
    return Softmax{args.inputs[0], args.outputs[0]};
  });
}

Kernel bind_log_softmax_cuda(const KernelRequest& request, const NoAttributes&) {
  return bind(request, "log_softmax", [](const KernelArgs& args) {
    return LogSoftmax{args.inputs[0], args.outputs[0]};
  });
}

Kernel bind_softmax_grad_cuda(const KernelRequest& request, const NoAttributes&) {
  return bind(request, "softmax_grad", [](const KernelArgs& args) {
    return SoftmaxGrad{args.inputs[0], args.inputs[1], args.outputs[0]};
  });
}

}  // namespace ebb
